"""1 / clamp(t) of a few numbers: one kernel forward and one backward, where plain PyTorch takes eight."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import power_of_two


@triton.jit
def _inverse(t_ptr, out_ptr, low, high, H: tl.constexpr, BH: tl.constexpr):
    h = tl.arange(0, BH)
    t = tl.load(t_ptr + h, mask=h < H, other=1.0)
    tl.store(out_ptr + h, 1 / tl.minimum(tl.maximum(t, low), high), mask=h < H)


@triton.jit
def _inverse_back(t_ptr, d_out_ptr, d_t_ptr, low, high, H: tl.constexpr, BH: tl.constexpr):
    h = tl.arange(0, BH)
    t = tl.load(t_ptr + h, mask=h < H, other=1.0)
    unclamped = (t >= low) & (t <= high)
    derivative = tl.where(unclamped, -1 / (t * t), 0.0)
    tl.store(d_t_ptr + h, derivative * tl.load(d_out_ptr + h, mask=h < H, other=0.0), mask=h < H)


def inverse_forward(t: Tensor, low: float, high: float) -> Tensor:
    out = torch.empty_like(t)
    _inverse[(1,)](t, out, low, high, t.numel(), power_of_two(t.numel()), num_warps=1)
    return out


def inverse_backward(t: Tensor, d_out: Tensor, low: float, high: float) -> Tensor:
    d_t = torch.empty_like(t)
    _inverse_back[(1,)](t, d_out, d_t, low, high, t.numel(), power_of_two(t.numel()), num_warps=1)
    return d_t
