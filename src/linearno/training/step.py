"""One optimiser step: from samples to a change of the weights."""

from collections.abc import Sequence
from contextlib import nullcontext

from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from linearno.data.sample import Batch
from linearno.data.scaler import Scaler
from linearno.nn.protocol import fused_parameters
from linearno.ops.side_streams import overlap_weight_gradients
from linearno.training.config import TrainingConfig
from linearno.training.losses import Loss
from linearno.training.optimizer import apply_gradients
from linearno.training.parallel import BatchShard
from linearno.training.predict import predict_batch
from linearno.training.tasks import Drawn, Task


def train_step(
    model: nn.Module,
    scaler: Scaler,
    batches: Sequence[Batch],
    loss_fn: Loss,
    optimizer: Optimizer,
    config: TrainingConfig,
    share: BatchShard | None = None,
    task: Task | None = None,
    drawn: Sequence[Drawn] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean loss per sample, and the gradient norm before clipping, of one step over all `batches`.

    The gradient is that of the batches put together into one, whichever the loss's reduction; with a `share`,
    of those of all processes. `drawn` is what the task drew for each of the batches.
    """
    task = task or Task()

    def ask(batch: Batch) -> Tensor:
        return predict_batch(model, scaler, batch, config.precision)

    optimizer.zero_grad(set_to_none=True)
    samples = sum(batch.size for batch in batches)
    total = batches[0].targets.new_zeros(())
    for batch, of_batch in zip(batches, drawn or [None] * len(batches), strict=True):
        overlap = len(batches) == 1 and fused_parameters(model)
        with overlap_weight_gradients(total.device) if overlap else nullcontext():
            loss = loss_fn(*task.train(ask, batch, of_batch))
            if config.loss.reduction == "mean":
                loss = loss * (batch.size / samples)
            loss.backward()
        total += loss.detach()
    per_sample = total if config.loss.reduction == "mean" else total / samples
    if share:
        per_sample = share.join(model, per_sample, config.loss.reduction)
    grad_norm = apply_gradients(model, optimizer, config.clip)
    return per_sample, grad_norm  # tensors: nothing here waits for the device
