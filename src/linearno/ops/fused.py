"""The attention kernels inside autograd: gather, scatter, what acts on slices and temperatures.

Callers check the shapes. The layers around them are in `fused_layers`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.side_streams import Leaves, beside, is_late, join, note_use
from linearno.ops.weight_cache import cached_inverse

Maybe = Tensor | None


def _given(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """What a kernel left empty has no gradient."""
    return tuple(None if tensor is None or tensor.numel() == 0 else tensor for tensor in tensors)


class FusedGather(torch.autograd.Function):
    """(max, sum, value, x): the gradient of the last joins that of x inside the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        value: Maybe,
        weight: Tensor,
        scale: Tensor,
        bias: Maybe,
        project: Maybe,
        score: str,
        offsets: Maybe,
        longest: int,
        leaves: Leaves,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from linearno.ops.triton import custom_ops as registered

        top, total, mean, mapped = registered.gather(
            x, value, weight, scale, bias, project, score, offsets, longest
        )
        ctx.save_for_backward(x, value, weight, scale, bias, project, top, total, mean, offsets)
        ctx.score, ctx.leaves, ctx.longest = score, leaves, longest
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(top)
        return top, total, mean if project is None else mapped, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Maybe, d_sum: Maybe, d_value: Maybe, through: Maybe) -> tuple[Maybe, ...]:
        from linearno.ops.triton import custom_ops as registered

        x, value, weight, scale, bias, project, top, total, mean, offsets = ctx.saved_tensors
        if d_value is None:
            d_value = mean.new_zeros(
                *mean.shape[:-1], mean.shape[-1] if project is None else project.shape[1]
            )
        d_sum, through = (None if d is None else d.contiguous() for d in (d_sum, through))
        d_x, d_points, *small = registered.gather_back(
            x,
            value,
            weight,
            scale,
            bias,
            project,
            top,
            total,
            mean,
            d_sum,
            d_value.contiguous(),
            through,
            ctx.score,
            is_late(x.device, ctx.leaves),
            offsets,
            ctx.longest,
        )
        return d_x, *_given(d_points), *join(x.device, ctx.leaves, *_given(*small)), *[None] * 4


class FusedScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Maybe, value: Tensor, offsets: Maybe,
        longest: int, leaves: Leaves,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton import custom_ops as registered

        keep = any(ctx.needs_input_grad)
        out, level = registered.scatter(x, weight, scale, bias, value, keep, offsets, longest)
        ctx.save_for_backward(x, weight, scale, bias, value, level, offsets)
        ctx.leaves, ctx.longest = leaves, longest
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton import custom_ops as registered

        *saved, offsets = ctx.saved_tensors
        late = is_late(d_out.device, ctx.leaves)
        d_x, *small, d_value = registered.scatter_back(*saved, d_out.contiguous(), late, offsets, ctx.longest)
        return d_x, *join(d_out.device, ctx.leaves, *_given(*small)), d_value, None, None, None


class FusedMix(torch.autograd.Function):
    """Softmax attention among the slices of each head; `cast_weight`: the layers around it compute in bf16.

    With `total` and `top` the slices are those of a sum-norm whose denominator has `eps` added first.
    """

    @staticmethod
    def forward(
        ctx: Any, slices: Tensor, total: Maybe, top: Maybe, query: Tensor, key: Tensor, value: Tensor,
        eps: float, narrow: bool,
    ) -> Tensor:  # fmt: skip
        from linearno.ops.triton.mix import mix_forward

        heads = slices.reshape(-1, *slices.shape[-2:]).contiguous()
        total, top = (None if part is None else part.contiguous() for part in (total, top))
        ctx.leaves, ctx.eps, ctx.narrow = note_use(query, key, value), eps, narrow
        query, key, value = (part.contiguous() for part in (query, key, value))
        ctx.save_for_backward(heads, total, top, query, key, value)
        return mix_forward(heads, total, top, query, key, value, eps, narrow).view(slices.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton.mix import mix_backward

        heads, total, top, query, key, value = ctx.saved_tensors
        d_heads = d_out.reshape(heads.shape).contiguous()
        d_slices, d_total, *others = mix_backward(
            heads, total, top, query, key, value, d_heads, ctx.eps, ctx.narrow, ctx.leaves
        )
        return d_slices.view(d_out.shape), d_total, None, *others, None, None


class FusedInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, low: float, high: float, leaves: Leaves) -> Tensor:
        from linearno.ops.triton.inverse import inverse_forward

        ctx.save_for_backward(t)
        ctx.bounds, ctx.leaves = (low, high), leaves
        lent = cached_inverse(t, low, high)
        return inverse_forward(t, low, high) if lent is None else lent.view_as(lent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Maybe, ...]:
        from linearno.ops.triton.inverse import inverse_backward

        (t,), (low, high) = ctx.saved_tensors, ctx.bounds
        made = beside(
            lambda: (inverse_backward(t, d_out.contiguous(), low, high),),
            d_out,
            leaves=ctx.leaves,
            first=True,
        )
        return *join(d_out.device, ctx.leaves, *made), None, None, None
