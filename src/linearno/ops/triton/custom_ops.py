"""The attention kernels as operators of PyTorch, so that compile and export see them as single nodes.

Of packed meshes `offsets` are where they begin and end, on the device, and `longest` has most points.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linearno.ops.triton.gather import gather_backward, gather_forward
from linearno.ops.triton.scatter import scatter_backward, scatter_forward
from linearno.ops.triton.tiling import Meshes


class Operator:
    """A function as an operator where somebody traces, and as it is elsewhere: the way through PyTorch's
    dispatcher and back to Python takes as long as the function itself."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.traced = torch.library.custom_op(f"linearno::{function.__name__}", function, mutates_args=())
        self.register_fake = self.traced.register_fake

    def __call__(self, *given: Any) -> Any:
        if torch.compiler.is_compiling() or type(given[0]) is not Tensor:
            return self.traced(*given)
        return self.function(*given)


@Operator
def gather(
    x: Tensor, value: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None,
    project: Tensor | None, score: str, offsets: Tensor | None, longest: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, longest)
    points = x if value is None else value
    return gather_forward(x, points, weight, scale, bias, project, score, value is None, meshes)


@gather.register_fake
def _(x, value, weight, scale, bias, project, score, offsets, longest):
    batch = x.shape[0] if offsets is None else offsets.shape[0] - 1
    heads, width = x.shape[2:]
    values = width if value is None else value.shape[-1]
    slices = weight.shape[1]
    top, total = (x.new_empty(batch, heads, slices, dtype=torch.float32) for _ in range(2))
    mean = x.new_empty(batch, heads, slices, values, dtype=torch.float32)
    size = (0,) if project is None else (batch, heads, slices, project.shape[1])
    return top, total, mean, x.new_empty(size, dtype=torch.float32)


@Operator
def gather_back(
    x: Tensor, value: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None,
    project: Tensor | None, top: Tensor, total: Tensor, mean: Tensor, d_sum: Tensor | None,
    d_value: Tensor, through: Tensor | None, score: str, late: bool, offsets: Tensor | None, longest: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, longest)
    points = x if value is None else value
    return gather_backward(
        x, points, weight, scale, bias, project, top, total, mean, d_sum, d_value, through, score,
        value is None, late, meshes,
    )  # fmt: skip


@gather_back.register_fake
def _(x, value, weight, scale, bias, project, top, *others):
    return tuple(
        top.new_empty(0) if like is None else torch.empty_like(like)
        for like in (x, value, weight, scale, bias, project)
    )


@Operator
def scatter(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, keep: bool,
    offsets: Tensor | None, longest: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return scatter_forward(x, weight, scale, bias, value, keep, Meshes.of(x, offsets, longest))


@scatter.register_fake
def _(x, weight, scale, bias, value, keep, offsets, longest):
    kept = keep and x.dtype != torch.float32
    level = x.new_empty(x.shape[:-1] if kept else (0,), dtype=torch.float32)
    return x.new_empty(*x.shape[:-1], value.shape[-1]), level


@Operator
def scatter_back(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, level: Tensor,
    d_out: Tensor, late: bool, offsets: Tensor | None, longest: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, longest)
    return scatter_backward(x, weight, scale, bias, value, level, d_out, late, meshes)


@scatter_back.register_fake
def _(x, weight, scale, bias, value, *others):
    return tuple(
        value.new_empty(0) if like is None else torch.empty_like(like)
        for like in (x, weight, scale, bias, value)
    )
