"""One mesh over several processes: each holds some of its points, and what all need of them is small.

Inside `sharded(group)` the states that processes gathered of their own points are merged over the group, with
one collective in the forward and one in the backward pass of a layer, and norms over points run over all of
them. Everything else stays as it is: a point's own features never leave its process.

Each process then has the gradient that flows through its own points. For a weight, the sum over the processes
is the gradient of one process with all points.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.state import State, merge

_GROUP: list[dist.ProcessGroup] = []  # of the process, not of a thread: autograd has threads of its own


@contextmanager
def sharded(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Inside the block points are parts of meshes that the processes of `group` hold together; None: no
    change. All of them must do the same things in the same order, on any number of points each."""
    if group is None:
        yield
        return
    _GROUP.append(group)
    try:
        yield
    finally:
        _GROUP.pop()


def is_sharded() -> bool:
    return bool(_GROUP)


def merge_ranks(state: State) -> State:
    """The state of a mesh, from what each process gathered of its own points; outside `sharded` the same."""
    return State(*_MergeRanks.apply(*state)) if is_sharded() else state


def all_gather(values: Float[Tensor, "*any"]) -> Float[Tensor, "R *any"]:
    """The values of all processes. What is made of them, such as a norm, is the same number everywhere, and
    counts once: its gradient reaches the values of this process only, as it is."""
    return _AllGather.apply(values)


class _MergeRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maximum: Tensor, weight_sum: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        local = torch.cat([maximum.unsqueeze(-1), weight_sum.unsqueeze(-1), value], dim=-1)  # … H M E+2
        gathered = _all_gather(local).unbind()
        merged = merge(*(State(part[..., 0], part[..., 1], part[..., 2:]) for part in gathered))
        ctx.save_for_backward(maximum, weight_sum, value, *merged)
        ctx.mark_non_differentiable(merged.max)
        return merged.max, merged.sum, merged.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, d_sum: Tensor, d_value: Tensor) -> tuple[Tensor | None, ...]:
        """With Z = Σ zᵢ, zᵢ = sumᵢ exp(maxᵢ − max) and value = Σ zᵢ valueᵢ / Z: the gradients of the whole
        are summed over the processes, then ∂valueᵢ = zᵢ/Z ∂value, ∂zᵢ = ∂Z + ⟨∂value, valueᵢ − value⟩ / Z."""
        maximum, weight_sum, value, merged_maximum, merged_weight_sum, whole_value = ctx.saved_tensors
        gradient = torch.cat([d_sum.unsqueeze(-1), d_value], dim=-1).contiguous()
        dist.all_reduce(gradient, group=_GROUP[-1])
        d_sum, d_value = gradient[..., 0], gradient[..., 1:]
        scale = (
            maximum - torch.where(merged_maximum.isinf(), torch.zeros_like(maximum), merged_maximum)
        ).exp()
        safe_sum = torch.where(merged_weight_sum > 0, merged_weight_sum, torch.ones_like(merged_weight_sum))
        d_share = (d_value * (value - whole_value)).sum(dim=-1)
        return (
            None,
            scale * (d_sum + d_share / safe_sum),
            (scale * weight_sum / safe_sum).unsqueeze(-1) * d_value,
        )


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _all_gather(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[dist.get_rank(_GROUP[-1])]


def _all_gather(values: Tensor) -> Tensor:
    """What every process of the group has, in its order."""
    group = _GROUP[-1]
    gathered = values.new_empty(dist.get_world_size(group), *values.shape)
    dist.all_gather(list(gathered.unbind()), values.contiguous(), group=group)
    return gathered
