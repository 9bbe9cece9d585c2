"""Autograd functions of fused layers: norms, branches, linear maps, convolutions and the loss.

Callers check shapes and dtypes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.convolve import convolve, weight_gradient
from linearno.ops.side_streams import ParameterUses, accumulate_gradients, record_use, run_on_side_stream
from linearno.ops.weight_cache import cast_weight


def _rows(part: Tensor | None, like: Tensor) -> Tensor | None:
    return None if part is None else part.reshape(-1, like.shape[-1])


class FusedNorm(torch.autograd.Function):
    """h + low_bits + addend + offset, its low bits, and its layer norm in `dtype`.

    With `split` the sum is stored as bf16 and eight further bits (`low_bits`). The backward kernel adds the
    gradient of the residual stream, which has the dtype of the stored sum.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, low_bits: Tensor | None, addend: Tensor | None, offset: Tensor | None,
        gain: Tensor, shift: Tensor, eps: float, dtype: torch.dtype, split: bool, uses: ParameterUses,
    ) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
        from linearno.ops.triton import norm

        rows = h.reshape(-1, h.shape[-1])
        total, new_low_bits, out, moments = norm.norm_forward(
            rows, _rows(low_bits, h), _rows(addend, h), offset, gain, shift, eps, dtype, split
        )
        ctx.save_for_backward(total, moments, gain)
        ctx.dtypes, ctx.has_offset = (h.dtype, None if addend is None else addend.dtype), offset is not None
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        new_low_bits = None if new_low_bits is None else new_low_bits.view(h.shape)
        if new_low_bits is not None:
            ctx.mark_non_differentiable(new_low_bits)
        return h if total is rows else total.view(h.shape), new_low_bits, out.view(h.shape)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_stream: Tensor | None, _: Tensor | None, d_out: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton import norm

        h, moments, gain = ctx.saved_tensors
        d_out, d_stream, shape = _flatten_gradients(d_out, d_stream, h)
        d_h, d_addend, (d_gain, d_shift, *d_offset) = norm.norm_backward(
            h, moments, gain, d_out, d_stream, ctx.dtypes, ctx.has_offset, ctx.uses
        )
        d_addend = None if d_addend is None else d_addend.view(shape)
        d_parameters = accumulate_gradients(h.device, ctx.uses, _first_or_none(d_offset), d_gain, d_shift)
        return d_h.view(shape), None, d_addend, *d_parameters, *[None] * 4


def _flatten_gradients(
    d_out: Tensor | None, d_stream: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor | None, torch.Size]:
    """Reshape the gradients of a norm and of its residual stream to rows; either may be None."""
    present = d_out if d_out is not None else d_stream
    assert present is not None
    d_out = torch.zeros_like(h) if d_out is None else d_out.reshape(h.shape).contiguous()
    return d_out, None if d_stream is None else d_stream.reshape(h.shape).contiguous(), present.shape


class FusedBranch(torch.autograd.Function):
    """`FusedNorm` with a branch of x as addend, in bf16.

    The branch is one linear map, or Linear, GELU, Linear with w1 and b1.
    `offset` is the bias of the last linear map.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, low_bits: Tensor | None, offset: Tensor, gain: Tensor, shift: Tensor,
        eps: float, w1: Tensor | None, b1: Tensor | None, w2: Tensor, uses: ParameterUses,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from linearno.ops.triton.mlp_norm import branch_forward

        rows, w1_cast = x.reshape(-1, x.shape[-1]), None if w1 is None else cast_weight(w1, x.dtype)
        w2_cast = cast_weight(w2, x.dtype)
        first = None if w1_cast is None or b1 is None else (w1_cast, b1)
        total, new_low_bits, out, moments, z = branch_forward(
            rows, h.reshape(-1, h.shape[-1]), _rows(low_bits, h), offset, gain, shift, eps, first, w2_cast
        )
        ctx.save_for_backward(total, moments, gain, rows, z, w1_cast, w2_cast)
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        total, new_low_bits, out = (part.view(h.shape) for part in (total, new_low_bits, out))
        ctx.mark_non_differentiable(new_low_bits)
        return total, new_low_bits, out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_stream: Tensor | None, _: Tensor | None, d_out: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.mlp_norm import branch_backward

        h, moments, gain, x, z, w1, w2 = ctx.saved_tensors
        d_out, d_stream, shape = _flatten_gradients(d_out, d_stream, h)
        d_x, d_h, d_parameters = branch_backward(h, moments, gain, d_out, d_stream, x, z, w1, w2, ctx.uses)
        d_offset, d_gain, d_shift, *d_branch = accumulate_gradients(h.device, ctx.uses, *d_parameters)
        d_branch = [None, None, *d_branch] if w1 is None else d_branch
        return (
            d_x.view(*shape[:-1], -1), d_h.view(shape), None, d_offset, d_gain, d_shift, None, *d_branch,
            None,
        )  # fmt: skip


def _first_or_none(gradients: Sequence[Tensor | None]) -> Tensor | None:
    return gradients[0] if gradients else None


class FusedHead(torch.autograd.Function):
    """⟨layer norm of h + low_bits + addend + offset, weight⟩ + bias: one output per row, in float32."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, low_bits: Tensor | None, addend: Tensor | None, offset: Tensor | None,
        gain: Tensor, shift: Tensor, eps: float, weight: Tensor, bias: Tensor,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton import norm

        rows, split = h.reshape(-1, h.shape[-1]), low_bits is not None
        total, _, out, moments = norm.norm_forward(
            rows, _rows(low_bits, h), _rows(addend, h), offset, gain, shift, eps, torch.float32, split,
            head=(weight, bias),
        )  # fmt: skip
        ctx.save_for_backward(total, moments, gain, shift, weight)
        ctx.dtypes, ctx.has_offset = (h.dtype, None if addend is None else addend.dtype), offset is not None
        ctx.uses = record_use(gain, shift, offset, weight, bias)
        return out.view(*h.shape[:-1], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton import norm

        h, moments, gain, shift, weight = ctx.saved_tensors
        shape = (*d_out.shape[:-1], h.shape[-1])
        d_h, d_addend, (d_gain, d_shift, *d_offset, d_weight, d_bias) = norm.norm_backward(
            h, moments, gain, d_out.contiguous(), None, ctx.dtypes, ctx.has_offset, ctx.uses,
            head=(shift, weight),
        )  # fmt: skip
        d_addend = None if d_addend is None else d_addend.view(shape)
        d_weight = d_weight.view(1, -1)
        return (
            d_h.view(shape), None, d_addend, _first_or_none(d_offset), d_gain, d_shift, None, d_weight,
            d_bias,
        )  # fmt: skip


class FusedMlp(torch.autograd.Function):
    """Linear, GELU, Linear: the first product in the dtype of x, the second in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor | None, dtype: torch.dtype,
        uses: ParameterUses,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton import mlp

        rows = x.reshape(-1, x.shape[-1])
        w1_cast, w2_cast = cast_weight(w1, x.dtype), cast_weight(w2, dtype)
        needs_grad = any(ctx.needs_input_grad)
        out, z = mlp.mlp_forward(rows, w1_cast, b1, w2_cast, b2, needs_grad)
        ctx.save_for_backward(rows, w1_cast, w2_cast, z)
        ctx.uses, ctx.has_bias = uses, b2 is not None
        return out.view(*x.shape[:-1], len(w2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton import mlp

        x, w1, w2, z = ctx.saved_tensors
        d_x, d_w1, d_b1, d_w2, *d_b2 = mlp.mlp_backward(
            x, w1, w2, z, d_out.reshape(-1, len(w2)), ctx.needs_input_grad[0], ctx.has_bias, ctx.uses
        )
        d_x = None if d_x is None else d_x.view(*d_out.shape[:-1], x.shape[-1])
        d_parameters = d_w1, d_b1, d_w2, _first_or_none(d_b2)
        return d_x, *accumulate_gradients(x.device, ctx.uses, *d_parameters), None, None


class FusedRelativeError(torch.autograd.Function):
    """Relative L2 error per sample; on a grid plus `weight` times that of each central difference."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, y: Tensor, grid: tuple[int, int] | None, weight: float) -> Tensor:
        from linearno.ops.triton.loss import loss_forward

        errors, factors = loss_forward(p, y, grid, weight)
        ctx.save_for_backward(p, y, factors)
        ctx.grid = grid
        return errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_errors: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.loss import loss_backward

        p, y, factors = ctx.saved_tensors
        return loss_backward(p, y, factors, d_errors.contiguous(), ctx.grid), None, None, None


class FusedLinear(torch.autograd.Function):
    """x wᵀ + b by cuBLAS, and x again, whose gradient is added inside the product for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        weight_cast = cast_weight(weight, x.dtype)
        ctx.save_for_backward(x, weight_cast)
        ctx.uses, ctx.has_bias = record_use(weight, bias), bias is not None
        ctx.set_materialize_grads(False)
        bias = None if bias is None else cast_weight(bias, x.dtype)
        return torch.nn.functional.linear(x, weight_cast, bias), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_passthrough: Tensor | None) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.mlp import weight_gradients

        if d_out is None:
            return d_passthrough, None, None
        x, weight = ctx.saved_tensors
        rows, inputs = d_out.reshape(-1, d_out.shape[-1]), x.reshape(-1, x.shape[-1])
        d_weight, *d_bias = run_on_side_stream(
            lambda: weight_gradients(rows, inputs, ctx.has_bias), rows, inputs, uses=ctx.uses
        )
        if not ctx.needs_input_grad[0]:
            d_x = None
        elif d_passthrough is None:
            d_x = d_out @ weight
        else:
            d_x = torch.addmm(d_passthrough.reshape(inputs.shape), rows, weight).view(x.shape)
        return d_x, d_weight, _first_or_none(d_bias)


class FusedConv(torch.autograd.Function):
    """A 3×3 (×3) convolution of points (B, N, W) on a grid, channels last throughout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, ...]) -> Tensor:
        from linearno.ops.triton.conv import add_bias_

        ctx.grid = grid
        weight_cast = cast_weight(weight, x.dtype)
        ctx.save_for_backward(x, weight_cast)
        ctx.uses = record_use(weight, bias)
        out = convolve(x, weight_cast, grid).contiguous()
        add_bias_(out, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.conv import flip_taps
        from linearno.ops.triton.norm import column_sums

        x, weight = ctx.saved_tensors
        d_out = d_out.contiguous()

        def weight_cast() -> tuple[Tensor, Tensor]:
            d_weight = weight_gradient(d_out, x, weight, ctx.grid)
            d_weight_like = torch.empty_like(weight, dtype=torch.float32).copy_(d_weight)
            return d_weight_like, column_sums(d_out.flatten(0, -2))

        gradients = run_on_side_stream(weight_cast, d_out, x, uses=ctx.uses)
        d_x = convolve(d_out, flip_taps(weight), ctx.grid) if ctx.needs_input_grad[0] else None
        return d_x, *gradients, None
