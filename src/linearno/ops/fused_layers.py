"""The kernels of layers inside autograd: norms, branches, products, convolutions, the loss. Callers check the
shapes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.convolve import convolve, weight_gradient
from linearno.ops.side_streams import Leaves, beside, join, note_use
from linearno.ops.weight_cache import cast_weight

Maybe = Tensor | None


def _rows(part: Maybe, like: Tensor) -> Maybe:
    return None if part is None else part.reshape(-1, like.shape[-1])


class FusedNorm(torch.autograd.Function):
    """The sum h + rest + more + offset, what rounding it left, and its layer norm in the type `kind`.

    The gradient along the residual stream is added in the same pass. It has the type of the sum: where that
    is split, bf16.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, rest: Maybe, more: Maybe, offset: Maybe, gain: Tensor, shift: Tensor, eps: float,
        kind: torch.dtype, split: bool, leaves: Leaves,
    ) -> tuple[Tensor, Maybe, Tensor]:  # fmt: skip
        from linearno.ops.triton import norm

        rows = h.reshape(-1, h.shape[-1])
        total, left, out, moments = norm.norm_forward(
            rows, _rows(rest, h), _rows(more, h), offset, gain, shift, eps, kind, split
        )
        ctx.save_for_backward(total, moments, gain)
        ctx.kinds, ctx.offset = (h.dtype, None if more is None else more.dtype), offset is not None
        ctx.leaves = leaves
        ctx.set_materialize_grads(False)
        left = None if left is None else left.view(h.shape)
        if left is not None:
            ctx.mark_non_differentiable(left)
        return h if total is rows else total.view(h.shape), left, out.view(h.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along: Maybe, _: Maybe, d_out: Maybe) -> tuple[Maybe, ...]:
        from linearno.ops.triton import norm

        h, moments, gain = ctx.saved_tensors
        d_out, along, shape = _slopes(d_out, along, h)
        d_h, d_more, (d_gain, d_shift, *d_offset) = norm.norm_backward(
            h, moments, gain, d_out, along, ctx.kinds, ctx.offset, ctx.leaves
        )
        d_more = None if d_more is None else d_more.view(shape)
        small = join(h.device, ctx.leaves, _first(d_offset), d_gain, d_shift)
        return d_h.view(shape), None, d_more, *small, *[None] * 4


def _slopes(d_out: Maybe, along: Maybe, h: Tensor) -> tuple[Tensor, Maybe, torch.Size]:
    """The gradients of a norm and along its stream as rows, and their shape; either may be missing."""
    given = d_out if d_out is not None else along
    assert given is not None
    d_out = torch.zeros_like(h) if d_out is None else d_out.reshape(h.shape).contiguous()
    return d_out, None if along is None else along.reshape(h.shape).contiguous(), given.shape


class FusedBranch(torch.autograd.Function):
    """`FusedNorm` of a stream to which a branch of x is added on the way: one linear map, or with w1 and b1
    Linear, GELU, Linear; its last bias is the offset. All in bf16."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, rest: Maybe, offset: Tensor, gain: Tensor, shift: Tensor, eps: float,
        w1: Maybe, b1: Maybe, w2: Tensor, leaves: Leaves,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from linearno.ops.triton.mlp_norm import branch_forward

        rows, narrow1 = x.reshape(-1, x.shape[-1]), None if w1 is None else cast_weight(w1, x.dtype)
        narrow2 = cast_weight(w2, x.dtype)
        first = None if narrow1 is None or b1 is None else (narrow1, b1)
        total, left, out, moments, z = branch_forward(
            rows, h.reshape(-1, h.shape[-1]), _rows(rest, h), offset, gain, shift, eps, first, narrow2
        )
        ctx.save_for_backward(total, moments, gain, rows, z, narrow1, narrow2)
        ctx.leaves = leaves
        ctx.set_materialize_grads(False)
        total, left, out = (part.view(h.shape) for part in (total, left, out))
        ctx.mark_non_differentiable(left)
        return total, left, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along: Maybe, _: Maybe, d_out: Maybe) -> tuple[Maybe, ...]:
        from linearno.ops.triton.mlp_norm import branch_backward

        h, moments, gain, x, z, w1, w2 = ctx.saved_tensors
        d_out, along, shape = _slopes(d_out, along, h)
        d_x, d_h, small = branch_backward(h, moments, gain, d_out, along, x, z, w1, w2, ctx.leaves)
        d_offset, d_gain, d_shift, *of_branch = join(h.device, ctx.leaves, *small)
        of_branch = [None, None, *of_branch] if w1 is None else of_branch
        return (
            d_x.view(*shape[:-1], -1),
            d_h.view(shape),
            None,
            d_offset,
            d_gain,
            d_shift,
            None,
            *of_branch,
            None,
        )


def _first(found: Sequence[Maybe]) -> Maybe:
    return found[0] if found else None


class FusedHead(torch.autograd.Function):
    """One number of each row: ⟨layer norm of h + rest + more + offset, weight⟩ + bias, in float32."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, rest: Maybe, more: Maybe, offset: Maybe, gain: Tensor, shift: Tensor, eps: float,
        weight: Tensor, bias: Tensor,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton import norm

        rows, split = h.reshape(-1, h.shape[-1]), rest is not None
        total, _, out, moments = norm.norm_forward(
            rows, _rows(rest, h), _rows(more, h), offset, gain, shift, eps, torch.float32, split,
            head=(weight, bias),
        )  # fmt: skip
        ctx.save_for_backward(total, moments, gain, shift, weight)
        ctx.kinds, ctx.offset = (h.dtype, None if more is None else more.dtype), offset is not None
        ctx.leaves = note_use(gain, shift, offset, weight, bias)
        return out.view(*h.shape[:-1], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton import norm

        h, moments, gain, shift, weight = ctx.saved_tensors
        shape = (*d_out.shape[:-1], h.shape[-1])
        d_h, d_more, (d_gain, d_shift, *d_offset, d_weight, d_bias) = norm.norm_backward(
            h,
            moments,
            gain,
            d_out.contiguous(),
            None,
            ctx.kinds,
            ctx.offset,
            ctx.leaves,
            head=(shift, weight),
        )
        d_more = None if d_more is None else d_more.view(shape)
        d_weight = d_weight.view(1, -1)
        return d_h.view(shape), None, d_more, _first(d_offset), d_gain, d_shift, None, d_weight, d_bias


class FusedMlp(torch.autograd.Function):
    """Linear, GELU, Linear: the first product in the type of x, the second in the type `kind`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Maybe, kind: torch.dtype, leaves: Leaves
    ) -> Tensor:
        from linearno.ops.triton import mlp

        rows = x.reshape(-1, x.shape[-1])
        narrow1, narrow2 = cast_weight(w1, x.dtype), cast_weight(w2, kind)
        keep = any(ctx.needs_input_grad)
        out, z = mlp.mlp_forward(rows, narrow1, b1, narrow2, b2, keep)
        ctx.save_for_backward(rows, narrow1, narrow2, z)
        ctx.leaves, ctx.biased = leaves, b2 is not None
        return out.view(*x.shape[:-1], len(w2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton import mlp

        x, w1, w2, z = ctx.saved_tensors
        d_x, d_w1, d_b1, d_w2, *d_b2 = mlp.mlp_backward(
            x, w1, w2, z, d_out.reshape(-1, len(w2)), ctx.needs_input_grad[0], ctx.biased, ctx.leaves
        )
        d_x = None if d_x is None else d_x.view(*d_out.shape[:-1], x.shape[-1])
        return d_x, *join(x.device, ctx.leaves, d_w1, d_b1, d_w2, _first(d_b2)), None, None


class FusedRelativeError(torch.autograd.Function):
    """Relative L2 of each sample, and of its slopes on a grid with a weight."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, y: Tensor, grid: tuple[int, int] | None, weight: float) -> Tensor:
        from linearno.ops.triton.loss import loss_forward

        errors, factors = loss_forward(p, y, grid, weight)
        ctx.save_for_backward(p, y, factors)
        ctx.grid = grid
        return errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_errors: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton.loss import loss_backward

        p, y, factors = ctx.saved_tensors
        return loss_backward(p, y, factors, d_errors.contiguous(), ctx.grid), None, None, None


class FusedLinear(torch.autograd.Function):
    """(x wᵀ + b, x): a library product; the gradient of the second joins that of x in it. What is ours is the
    gradient of the bias, and weights cast once a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        small = cast_weight(weight, x.dtype)
        ctx.save_for_backward(x, small)
        ctx.leaves, ctx.biased = note_use(weight, bias), bias is not None
        ctx.set_materialize_grads(False)
        return torch.nn.functional.linear(x, small, None if bias is None else cast_weight(bias, x.dtype)), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Maybe, through: Maybe) -> tuple[Maybe, ...]:
        from linearno.ops.triton.mlp import weight_gradients

        if d_out is None:
            return through, None, None
        x, weight = ctx.saved_tensors
        rows, inputs = d_out.reshape(-1, d_out.shape[-1]), x.reshape(-1, x.shape[-1])
        d_weight, *d_bias = beside(
            lambda: weight_gradients(rows, inputs, ctx.biased), rows, inputs, leaves=ctx.leaves
        )
        if not ctx.needs_input_grad[0]:
            d_x = None
        elif through is None:
            d_x = d_out @ weight
        else:
            d_x = torch.addmm(through.reshape(inputs.shape), rows, weight).view(x.shape)
        return d_x, d_weight, _first(d_bias)


class FusedConv(torch.autograd.Function):
    """A 3×3 (×3) convolution of points (B, N, W) on a grid, channels last from end to end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, ...]) -> Tensor:
        from linearno.ops.triton.conv import add_bias_

        ctx.grid = grid
        small = cast_weight(weight, x.dtype)
        ctx.save_for_backward(x, small)
        ctx.leaves = note_use(weight, bias)
        out = convolve(x, small, grid).contiguous()
        add_bias_(out, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton.conv import turned
        from linearno.ops.triton.norm import column_sums

        x, weight = ctx.saved_tensors
        d_out = d_out.contiguous()

        def small() -> tuple[Tensor, Tensor]:
            d_weight = weight_gradient(d_out, x, weight, ctx.grid)
            alike = torch.empty_like(weight, dtype=torch.float32).copy_(d_weight)
            return alike, column_sums(d_out.flatten(0, -2))

        gradients = beside(small, d_out, x, leaves=ctx.leaves)
        d_x = convolve(d_out, turned(weight), ctx.grid) if ctx.needs_input_grad[0] else None
        return d_x, *gradients, None
