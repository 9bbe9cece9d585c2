"""Softmax attention among the slices of a head, and the sum-norm's correction: a program for each head.

Axes: P heads of all samples, M slices, D width. All in float32, as there are few slices and few bytes;
products in tf32 where the layers around them are narrow.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.beside import Leaves, beside
from linearno.ops.kernels.launch import exp, multiply, pad, product_precision
from linearno.ops.kernels.norm import add_rows


@triton.jit
def _parts(
    slices_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    M: tl.constexpr,
    D: tl.constexpr,
    PRODUCT: tl.constexpr,
    BM: tl.constexpr,
    BD: tl.constexpr,
):
    """Slices (M, D), the three maps as (in, out), and the attention matrix."""
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    inside = (m < M)[:, None] & (d < D)[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    turned = d[None, :] * D + d[:, None]
    slices = tl.load(
        slices_ptr + (tl.program_id(0) * M + m)[:, None] * D + d[None, :], mask=inside, other=0.0
    )
    w_query = tl.load(query_ptr + turned, mask=square, other=0.0)
    w_key = tl.load(key_ptr + turned, mask=square, other=0.0)
    w_value = tl.load(value_ptr + turned, mask=square, other=0.0)
    query, key = multiply(slices, w_query, 0.0, PRODUCT), multiply(slices, w_key, 0.0, PRODUCT)
    scores = multiply(query, tl.trans(key), 0.0, PRODUCT) / tl.sqrt(float(D))
    scores = tl.where((m < M)[None, :], scores, float("-inf"))
    share = exp(scores - tl.max(scores, axis=1)[:, None], True)
    share = share * (1 / tl.sum(share, axis=1))[:, None]
    share = tl.where((m < M)[:, None], share, 0.0)
    return slices, w_query, w_key, w_value, query, key, share


@triton.jit
def _mix(
    slices_ptr, query_ptr, key_ptr, value_ptr, out_ptr,
    M: tl.constexpr, D: tl.constexpr, PRODUCT: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    slices, _, _, w_value, _, _, share = _parts(
        slices_ptr, query_ptr, key_ptr, value_ptr, M, D, PRODUCT, BM, BD
    )
    out = multiply(share, multiply(slices, w_value, 0.0, PRODUCT), 0.0, PRODUCT)
    place = (tl.program_id(0) * M + m)[:, None] * D + d[None, :]
    tl.store(out_ptr + place, out, mask=(m < M)[:, None] & (d < D)[None, :])


@triton.jit
def _mix_back(
    slices_ptr, query_ptr, key_ptr, value_ptr, d_out_ptr, d_slices_ptr, part_ptr,
    M: tl.constexpr, D: tl.constexpr, PRODUCT: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    slices, w_query, w_key, w_value, query, key, share = _parts(
        slices_ptr, query_ptr, key_ptr, value_ptr, M, D, PRODUCT, BM, BD
    )
    inside = (m < M)[:, None] & (d < D)[None, :]
    place = (tl.program_id(0) * M + m)[:, None] * D + d[None, :]
    d_out = tl.load(d_out_ptr + place, mask=inside, other=0.0)
    d_value = multiply(tl.trans(share), d_out, 0.0, PRODUCT)
    d_share = multiply(d_out, tl.trans(multiply(slices, w_value, 0.0, PRODUCT)), 0.0, PRODUCT)
    d_scores = share * (d_share - tl.sum(share * d_share, axis=1)[:, None]) / tl.sqrt(float(D))
    d_query, d_key = multiply(d_scores, key, 0.0, PRODUCT), multiply(tl.trans(d_scores), query, 0.0, PRODUCT)
    d_slices = multiply(d_query, tl.trans(w_query), 0.0, PRODUCT) + multiply(
        d_key, tl.trans(w_key), 0.0, PRODUCT
    )
    d_slices += multiply(d_value, tl.trans(w_value), 0.0, PRODUCT)
    tl.store(d_slices_ptr + place, d_slices, mask=inside)
    part = part_ptr + tl.program_id(0) * 3 * D * D + d[:, None] * D + d[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    tl.store(part, multiply(tl.trans(d_query), slices, 0.0, PRODUCT), mask=square)
    tl.store(part + D * D, multiply(tl.trans(d_key), slices, 0.0, PRODUCT), mask=square)
    tl.store(part + 2 * D * D, multiply(tl.trans(d_value), slices, 0.0, PRODUCT), mask=square)


@triton.jit
def _damp(
    value_ptr, sum_ptr, max_ptr, out_ptr, rows, eps, E: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr
):
    """value · Σw / (Σw + eps), with Σw = sum · exp(max)."""
    r, e = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BE)
    total = tl.load(sum_ptr + r, mask=r < rows, other=1.0)
    damped = total / (total + eps * tl.exp(-tl.load(max_ptr + r, mask=r < rows, other=0.0)))
    inside = (r < rows)[:, None] & (e < E)[None, :]
    place = r[:, None] * E + e[None, :]
    value = tl.load(value_ptr + place, mask=inside, other=0.0)
    tl.store(out_ptr + place, value * damped[:, None], mask=inside)


@triton.jit
def _damp_back(
    value_ptr, sum_ptr, max_ptr, d_out_ptr, d_value_ptr, d_sum_ptr, rows, eps,
    E: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    r, e = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BE)
    total = tl.load(sum_ptr + r, mask=r < rows, other=1.0)
    small = eps * tl.exp(-tl.load(max_ptr + r, mask=r < rows, other=0.0))
    inside = (r < rows)[:, None] & (e < E)[None, :]
    place = r[:, None] * E + e[None, :]
    d_out = tl.load(d_out_ptr + place, mask=inside, other=0.0)
    value = tl.load(value_ptr + place, mask=inside, other=0.0)
    tl.store(d_value_ptr + place, d_out * (total / (total + small))[:, None], mask=inside)
    slope = small / ((total + small) * (total + small))
    tl.store(d_sum_ptr + r, tl.sum(d_out * value, axis=1) * slope, mask=r < rows)


def _product(slices: Tensor, narrow: bool) -> str:
    exact = product_precision(slices)
    return "tf32" if narrow and exact == "ieee" else exact


def mix_forward(slices: Tensor, query: Tensor, key: Tensor, value: Tensor, narrow: bool) -> Tensor:
    heads, count, width = slices.shape
    out = torch.empty_like(slices)
    _mix[(heads,)](
        slices, query, key, value, out, count, width, _product(slices, narrow), pad(count), pad(width),
        num_warps=4,
    )  # fmt: skip
    return out


def mix_backward(
    slices: Tensor, query: Tensor, key: Tensor, value: Tensor, d_out: Tensor, narrow: bool,
    leaves: Leaves = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    heads, count, width = slices.shape
    d_slices, parts = torch.empty_like(slices), slices.new_empty(heads, 3 * width * width)
    _mix_back[(heads,)](
        slices, query, key, value, d_out, d_slices, parts, count, width, _product(slices, narrow),
        pad(count), pad(width), num_warps=4,
    )  # fmt: skip
    (sums,) = beside(lambda: (add_rows(parts),), parts, leaves=leaves)
    d_query, d_key, d_value = sums.view(3, width, width)
    return d_slices, d_query, d_key, d_value


def damp_forward(value: Tensor, total: Tensor, top: Tensor, eps: float) -> Tensor:
    out, rows = torch.empty_like(value), total.numel()
    _damp[(-(-rows // 64),)](value, total, top, out, rows, eps, value.shape[-1], 64, pad(value.shape[-1]))
    return out


def damp_backward(
    value: Tensor, total: Tensor, top: Tensor, d_out: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    d_value, d_sum, rows = torch.empty_like(value), torch.empty_like(total), total.numel()
    _damp_back[(-(-rows // 64),)](
        value, total, top, d_out, d_value, d_sum, rows, eps, value.shape[-1], 64, pad(value.shape[-1])
    )
    return d_value, d_sum
