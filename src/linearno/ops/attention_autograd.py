"""Autograd functions of the attention kernels: gather, scatter, slice attention, inverse temperatures.

Callers check shapes and dtypes. Other layers are in `layer_autograd`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.side_streams import (
    ParameterUses,
    accumulate_gradients,
    is_deferred,
    record_use,
    run_on_side_stream,
)
from linearno.ops.weight_cache import cached_inverse


def _empty_to_none(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Kernels return empty tensors for missing gradients, autograd expects None."""
    return tuple(None if tensor is None or tensor.numel() == 0 else tensor for tensor in tensors)


class FusedGather(torch.autograd.Function):
    """The state (max, sum, value), and x, whose gradient the backward kernel adds to its own."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None,
        project: Tensor | None, score: str, offsets: Tensor | None, max_points: int, uses: ParameterUses,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        from linearno.ops.triton import custom_ops

        maximum, weight_sum, mean, mapped = custom_ops.gather(
            x, value, weight, scale, bias, project, score, offsets, max_points
        )
        ctx.save_for_backward(x, value, weight, scale, bias, project, maximum, weight_sum, mean, offsets)
        ctx.score, ctx.uses, ctx.max_points = score, uses, max_points
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(maximum)
        return maximum, weight_sum, mean if project is None else mapped, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, _: Tensor | None, d_sum: Tensor | None, d_value: Tensor | None,
        d_passthrough: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        from linearno.ops.triton import custom_ops

        x, value, weight, scale, bias, project, maximum, weight_sum, mean, offsets = ctx.saved_tensors
        if d_value is None:
            d_value = mean.new_zeros(
                *mean.shape[:-1], mean.shape[-1] if project is None else project.shape[1]
            )
        d_sum, d_passthrough = (None if d is None else d.contiguous() for d in (d_sum, d_passthrough))
        d_x, d_points, *d_parameters = custom_ops.gather_back(
            x, value, weight, scale, bias, project, maximum, weight_sum, mean, d_sum, d_value.contiguous(),
            d_passthrough, ctx.score, is_deferred(x.device, ctx.uses), offsets, ctx.max_points,
        )  # fmt: skip
        d_parameters = accumulate_gradients(x.device, ctx.uses, *_empty_to_none(*d_parameters))
        return d_x, *_empty_to_none(d_points), *d_parameters, *[None] * 4


class FusedScatter(torch.autograd.Function):
    """Slices `value` (B, H, M, E) scattered to points (B, N, H, E)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor,
        offsets: Tensor | None, max_points: int, uses: ParameterUses,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton import custom_ops

        needs_grad = any(ctx.needs_input_grad)
        out, log_sum = custom_ops.scatter(x, weight, scale, bias, value, needs_grad, offsets, max_points)
        ctx.save_for_backward(x, weight, scale, bias, value, log_sum, offsets)
        ctx.uses, ctx.max_points = uses, max_points
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton import custom_ops

        *saved, offsets = ctx.saved_tensors
        deferred = is_deferred(d_out.device, ctx.uses)
        d_x, *d_parameters, d_value = custom_ops.scatter_back(
            *saved, d_out.contiguous(), deferred, offsets, ctx.max_points
        )
        return (
            d_x, *accumulate_gradients(d_out.device, ctx.uses, *_empty_to_none(*d_parameters)), d_value,
            None, None, None,
        )  # fmt: skip


class FusedMix(torch.autograd.Function):
    """Softmax attention among the slices of each head.

    With `weight_sum` and `maximum` of a state, slices are first multiplied by Σw / (Σw + eps). `use_bf16`:
    the surrounding layers compute in bf16, so products may use tf32.
    """

    @staticmethod
    def forward(
        ctx: Any, slices: Tensor, weight_sum: Tensor | None, maximum: Tensor | None, query: Tensor,
        key: Tensor, value: Tensor, eps: float, use_bf16: bool,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton.mix import mix_forward

        heads = slices.reshape(-1, *slices.shape[-2:]).contiguous()
        weight_sum, maximum = (None if part is None else part.contiguous() for part in (weight_sum, maximum))
        ctx.uses, ctx.eps, ctx.use_bf16 = record_use(query, key, value), eps, use_bf16
        query, key, value = (part.contiguous() for part in (query, key, value))
        ctx.save_for_backward(heads, weight_sum, maximum, query, key, value)
        return mix_forward(heads, weight_sum, maximum, query, key, value, eps, use_bf16).view(slices.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.mix import mix_backward

        heads, weight_sum, maximum, query, key, value = ctx.saved_tensors
        d_heads = d_out.reshape(heads.shape).contiguous()
        d_slices, d_weight_sum, *d_maps = mix_backward(
            heads, weight_sum, maximum, query, key, value, d_heads, ctx.eps, ctx.use_bf16, ctx.uses
        )
        return d_slices.view(d_out.shape), d_weight_sum, None, *d_maps, None, None


class FusedInverse(torch.autograd.Function):
    """1 / clamp(t, low, high); `side_streams.TRANSPARENT_NODES` refers to this name."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, low: float, high: float, uses: ParameterUses) -> Tensor:
        from linearno.ops.triton.inverse import inverse_forward

        ctx.save_for_backward(t)
        ctx.bounds, ctx.uses = (low, high), uses
        cached = cached_inverse(t, low, high)
        return inverse_forward(t, low, high) if cached is None else cached.view_as(cached)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from linearno.ops.triton.inverse import inverse_backward

        (t,), (low, high) = ctx.saved_tensors, ctx.bounds
        gradients = run_on_side_stream(
            lambda: (inverse_backward(t, d_out.contiguous(), low, high),),
            d_out,
            uses=ctx.uses,
            in_order=True,
        )
        return *accumulate_gradients(d_out.device, ctx.uses, *gradients), None, None, None
