"""The attention kernels as PyTorch custom ops: single nodes for torch.compile and torch.export.

For packed meshes `offsets` (S + 1) lie on the device, and `max_points` is the size of the largest mesh.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linearno.ops.triton.gather import gather_backward, gather_forward
from linearno.ops.triton.scatter import scatter_backward, scatter_forward
from linearno.ops.triton.tiling import Meshes


class Operator:
    """A function that is called as a custom op while tracing, and directly otherwise.

    The dispatcher takes as long as the function itself.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.custom_op = torch.library.custom_op(f"linearno::{function.__name__}", function, mutates_args=())
        self.register_fake = self.custom_op.register_fake

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling() or type(args[0]) is not Tensor:
            return self.custom_op(*args)
        return self.function(*args)


@Operator
def gather(
    x: Tensor, value: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None,
    project: Tensor | None, score: str, offsets: Tensor | None, max_points: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, max_points)
    points = x if value is None else value
    return gather_forward(x, points, weight, scale, bias, project, score, value is None, meshes)


@gather.register_fake
def _(x, value, weight, scale, bias, project, score, offsets, max_points):
    batch = x.shape[0] if offsets is None else offsets.shape[0] - 1
    heads, width = x.shape[2:]
    values = width if value is None else value.shape[-1]
    slices = weight.shape[1]
    maximum, weight_sum = (x.new_empty(batch, heads, slices, dtype=torch.float32) for _ in range(2))
    mean = x.new_empty(batch, heads, slices, values, dtype=torch.float32)
    size = (0,) if project is None else (batch, heads, slices, project.shape[1])
    return maximum, weight_sum, mean, x.new_empty(size, dtype=torch.float32)


@Operator
def gather_back(
    x: Tensor, value: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None,
    project: Tensor | None, maximum: Tensor, weight_sum: Tensor, mean: Tensor, d_sum: Tensor | None,
    d_value: Tensor, d_passthrough: Tensor | None, score: str, deferred: bool, offsets: Tensor | None,
    max_points: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, max_points)
    points = x if value is None else value
    return gather_backward(
        x, points, weight, scale, bias, project, maximum, weight_sum, mean, d_sum, d_value, d_passthrough,
        score, value is None, deferred, meshes,
    )  # fmt: skip


@gather_back.register_fake
def _(x, value, weight, scale, bias, project, maximum, *others):
    return tuple(
        maximum.new_empty(0) if like is None else torch.empty_like(like)
        for like in (x, value, weight, scale, bias, project)
    )


@Operator
def scatter(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, keep_log_sum: bool,
    offsets: Tensor | None, max_points: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return scatter_forward(x, weight, scale, bias, value, keep_log_sum, Meshes.of(x, offsets, max_points))


@scatter.register_fake
def _(x, weight, scale, bias, value, keep_log_sum, offsets, max_points):
    has_log_sum = keep_log_sum and x.dtype != torch.float32
    log_sum = x.new_empty(x.shape[:-1] if has_log_sum else (0,), dtype=torch.float32)
    return x.new_empty(*x.shape[:-1], value.shape[-1]), log_sum


@Operator
def scatter_back(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, log_sum: Tensor,
    d_out: Tensor, deferred: bool, offsets: Tensor | None, max_points: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    meshes = Meshes.of(x, offsets, max_points)
    return scatter_backward(x, weight, scale, bias, value, log_sum, d_out, deferred, meshes)


@scatter_back.register_fake
def _(x, weight, scale, bias, value, *others):
    return tuple(
        value.new_empty(0) if like is None else torch.empty_like(like)
        for like in (x, weight, scale, bias, value)
    )
