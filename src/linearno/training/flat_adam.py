"""Adam and AdamW with weights, gradients and moments in flat memory: a step is a few kernels.

With PyTorch's fused AdamW instead the training steps of Darcy, Airfoil, Elasticity and Navier-Stokes take 15,
11, 55 and 3 % longer (NVIDIA H200, bf16, captured as a CUDA graph).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def flat_refusal(parameters: Sequence[nn.Parameter]) -> str | None:
    """Why `FlatAdam` cannot train these parameters; None if it can.

    It moves each of them into flat float32 memory, which is wrong for weights of other types or devices,
    weights that overlap or leave gaps in memory, and weights that share memory.
    """
    for weight in parameters:
        if weight.dtype != torch.float32:
            return f"weights are {weight.dtype}"
        if weight.device != parameters[0].device:
            return f"weights are on {weight.device} and {parameters[0].device}"
        if torch.empty_like(weight, device="meta").stride() != weight.stride():  # which keeps dense ones
            return "weights overlap or leave gaps in memory"
    ranges = sorted((weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in parameters)
    if any(end > start for (_, end), (start, _) in pairwise(ranges)):
        return "weights share memory"
    return None


class FlatAdam(Optimizer):
    """PyTorch's Adam (L2 decay) or AdamW (decoupled), with gradient clipping.

    What changes from step to step is read from a tensor, so a captured step follows the schedule. Parameters
    without a gradient are skipped, as in PyTorch. The state has PyTorch's names and shapes: a checkpoint of
    one optimiser can be loaded into the other.

    Args:
        parameters: for which `flat_refusal` is None.
        lr: learning rate.
        betas: decays of the moments.
        weight_decay: decay of the weights.
        decoupled: AdamW's decay instead of Adam's.
        clip: largest norm of all gradients together; None: no clipping.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        decoupled: bool,
        clip: float | None,
        eps: float = 1e-8,
    ):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.decoupled, self.clip = decoupled, clip
        self.norm: Tensor | None = None  # of the last step's gradient, before clipping
        self.layout = 0  # number of times weights or moments were moved: a step captured before is stale
        self._steps = torch.zeros(())
        self._used: list[nn.Parameter] = []

    def prepare(self) -> None:
        """Count a step and copy its settings to the device: the part of a step that runs on the host."""
        self._steps += 1
        count, group = int(self._steps), self.param_groups[0]
        beta1, beta2 = group["betas"]
        corrections = (1 - beta1**count, 1 - beta2**count)
        settings = torch.tensor([group["lr"], beta1, beta2, *corrections], dtype=torch.float32)
        if not self._used:
            self._settings = settings.to(group["params"][0].device)
        self._settings.copy_(settings, non_blocking=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it calls none
        """Apply the gradients with the settings of the last `prepare`."""
        from linearno.ops.triton.adam import adam_step

        group = self.param_groups[0]
        used = [weight for weight in group["params"] if weight.grad is not None]
        if [id(weight) for weight in used] != [id(weight) for weight in self._used]:
            self._flatten(used)
        torch.cat(
            [
                part
                for weight, gap in zip(used, self._gaps, strict=True)
                for part in (_flat_grad(weight), *gap)
            ],
            out=self._grad,
        )
        self.norm = adam_step(
            self._weight, self._grad, self._first, self._second, self._settings,
            clip=self.clip, eps=group["eps"], decay=group["weight_decay"], decoupled=self.decoupled,
        )  # fmt: skip

    def _flatten(self, used: list[nn.Parameter]) -> None:
        """Move weights and moments into flat memory; each parameter becomes a view of it."""
        sizes = [-(-weight.numel() // 8) * 8 for weight in used]  # so that bf16 copies start at 16 bytes too
        flat = [torch.zeros(sum(sizes), device=used[0].device) for _ in range(4)]
        gaps = [size - weight.numel() for weight, size in zip(used, sizes, strict=True)]
        self._gaps = [[flat[1].new_zeros(gap)] if gap else [] for gap in gaps]
        self._weight, self._grad, self._first, self._second = flat
        views = [
            [piece[: weight.numel()].as_strided(weight.shape, weight.stride(), piece.storage_offset())
             for weight, piece in zip(used, kind.split(sizes), strict=True)]
            for kind in flat
        ]  # fmt: skip
        for weight, moved, first, second in zip(used, views[0], views[2], views[3], strict=True):
            moments = self.state.get(weight, {})
            moved.copy_(weight)
            weight.data = moved
            if moments:
                first.copy_(moments["exp_avg"])
                second.copy_(moments["exp_avg_sq"])
            self.state[weight] = {"step": self._steps, "exp_avg": first, "exp_avg_sq": second}
        self._used = used
        self.layout += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Accepts the state of PyTorch's Adam as well."""
        super().load_state_dict(state_dict)
        counts = [float(moments["step"]) for moments in self.state.values()]
        self._steps.fill_(max(counts, default=0.0))
        self._used = []  # the next step flattens what was loaded
        self.layout += 1


def _flat_grad(weight: nn.Parameter) -> Tensor:
    """The gradient as a vector, in the memory order of the weight."""
    grad = weight.grad
    assert grad is not None
    if grad.stride() != weight.stride():
        grad = torch.empty_like(weight).copy_(grad)
    return grad.as_strided((grad.numel(),), (1,))
