"""Shard the points of a mesh over processes and merge the slice states.

Inside `sharded(group)` each process gathers its shard of the points, and the states are merged over the group
with one collective in the forward and one in the backward pass of a layer. Norms over points run over all
shards. The features of a point never leave its process.

A process holds the gradient through its own points. The sum over the processes is the gradient of a weight
that one process with all points would compute.
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

_GROUP: list[
    dist.ProcessGroup
] = []  # global, not thread-local: autograd runs backward passes in other threads


@contextmanager
def sharded(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Treat the points inside the block as the shard of this process.

    All processes of the group must run the same operations in the same order, on any number of points each.

    Args:
        group: processes that share the meshes; None: no sharding.
    """
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
    """Merge the states of the shards over the group; outside `sharded` return `state` itself."""
    return State(*_MergeRanks.apply(*state)) if is_sharded() else state


def all_gather(values: Float[Tensor, "*any"]) -> Float[Tensor, "R *any"]:
    """Stack the values of the R processes.

    A result computed from them, such as a norm, is equal on all processes and counts once in the loss: the
    backward pass returns the gradient of this process's values without a reduction.
    """
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
        """Sum the gradients of the merged state over the processes; with zᵢ = sumᵢ exp(maxᵢ − max), Z = Σ zᵢ
        and value = Σ zᵢ valueᵢ / Z then ∂valueᵢ = zᵢ/Z ∂value, ∂zᵢ = ∂Z + ⟨∂value, valueᵢ − value⟩ / Z."""
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
    """Stack the values of all processes in rank order."""
    group = _GROUP[-1]
    gathered = values.new_empty(dist.get_world_size(group), *values.shape)
    dist.all_gather(list(gathered.unbind()), values.contiguous(), group=group)
    return gathered
