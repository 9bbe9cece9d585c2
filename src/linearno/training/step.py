"""One optimiser step: from samples to a change of the weights."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from linearno.data.sample import Sample
from linearno.data.scaler import Scaler
from linearno.training.config import TrainingConfig
from linearno.training.losses import Loss
from linearno.training.predict import answer


def train_step(
    model: nn.Module,
    scaler: Scaler,
    batches: Sequence[Sample],
    loss_fn: Loss,
    optimizer: Optimizer,
    config: TrainingConfig,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean loss per sample, and the gradient norm before clipping, of one step over all `batches`.

    The gradient is that of the batches put together into one, whichever the loss's reduction.
    """
    optimizer.zero_grad(set_to_none=True)
    samples = sum(len(batch.targets) for batch in batches)
    total = batches[0].targets.new_zeros(())
    for batch in batches:
        loss = loss_fn(answer(model, scaler, batch, config.precision), batch.targets)
        if config.loss.reduction == "mean":
            loss = loss * (len(batch.targets) / samples)
        loss.backward()
        total += loss.detach()
    grad_norm = clip_gradients(model, config.clip)
    optimizer.step()
    per_sample = total if config.loss.reduction == "mean" else total / samples
    return per_sample, grad_norm  # tensors: nothing here waits for the device


def clip_gradients(model: nn.Module, clip: float | None) -> Float[Tensor, ""]:
    """The norm of all gradients together, which are scaled down to `clip` where it is larger."""
    if clip is not None:
        return nn.utils.clip_grad_norm_(model.parameters(), clip).detach()
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).detach()
