"""The attention kernels as operators of PyTorch, so that compile and export see them as single nodes.

Of packed meshes `offsets` are where they begin and end, on the device, and `longest` has most points.
"""

import torch
from torch import Tensor

from linearno.ops.kernels.gather import gather_backward, gather_forward
from linearno.ops.kernels.scatter import scatter_backward, scatter_forward
from linearno.ops.kernels.sums import Meshes


@torch.library.custom_op("linearno::gather", mutates_args=())
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


@torch.library.custom_op("linearno::gather_back", mutates_args=())
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


@torch.library.custom_op("linearno::scatter", mutates_args=())
def scatter(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, offsets: Tensor | None,
    longest: int,
) -> Tensor:  # fmt: skip
    return scatter_forward(x, weight, scale, bias, value, Meshes.of(x, offsets, longest))


@scatter.register_fake
def _(x, weight, scale, bias, value, offsets, longest):
    return x.new_empty(*x.shape[:-1], value.shape[-1])


@torch.library.custom_op("linearno::scatter_back", mutates_args=())
def scatter_back(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, d_out: Tensor,
    late: bool, offsets: Tensor | None, longest: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return scatter_backward(x, weight, scale, bias, value, d_out, late, Meshes.of(x, offsets, longest))


@scatter_back.register_fake
def _(x, weight, scale, bias, value, *others):
    return tuple(
        value.new_empty(0) if like is None else torch.empty_like(like)
        for like in (x, weight, scale, bias, value)
    )
