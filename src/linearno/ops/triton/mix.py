"""Softmax attention among the slices of a head, which the sum-norm's correction may precede: a program for
each head.

Axes: P heads of all samples, M slices, D width. All in float32, as there are few slices and few bytes;
products in tf32 where the layers around them are narrow.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import Leaves, beside
from linearno.ops.triton.common import early, exp, follow, multiply, pad, product_precision
from linearno.ops.triton.norm import add_rows


@triton.jit
def _parts(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps,
    M: tl.constexpr, D: tl.constexpr, DAMPED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Slices (M, D) before the correction and after it, Σw and what joins it, the three maps as (in, out),
    and the attention matrix. The correction is Σw / (Σw + eps), with Σw = sum · exp(max)."""
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    inside = (m < M)[:, None] & (d < D)[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    turned = d[None, :] * D + d[:, None]
    place = tl.program_id(0) * M + m
    given = tl.load(slices_ptr + place[:, None] * D + d[None, :], mask=inside, other=0.0)
    slices, total, small = given, 1.0, 0.0
    if DAMPED:
        total = tl.load(sum_ptr + place, mask=m < M, other=1.0)
        top = tl.load(max_ptr + place, mask=m < M, other=0.0)
        small = eps * tl.exp(tl.minimum(-top, 80.0))  # finite where no point belongs to a slice
        slices = given * (total / (total + small))[:, None]
    w_query = tl.load(query_ptr + turned, mask=square, other=0.0)
    w_key = tl.load(key_ptr + turned, mask=square, other=0.0)
    w_value = tl.load(value_ptr + turned, mask=square, other=0.0)
    query, key = multiply(slices, w_query, 0.0, PRODUCT), multiply(slices, w_key, 0.0, PRODUCT)
    scores = multiply(query, tl.trans(key), 0.0, PRODUCT) / tl.sqrt(float(D))
    scores = tl.where((m < M)[None, :], scores, float("-inf"))
    share = exp(scores - tl.max(scores, axis=1)[:, None], True)
    share = share * (1 / tl.sum(share, axis=1))[:, None]
    share = tl.where((m < M)[:, None], share, 0.0)
    return given, slices, total, small, w_query, w_key, w_value, query, key, share


@triton.jit
def _mix(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, out_ptr, eps,
    M: tl.constexpr, D: tl.constexpr, DAMPED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    _, slices, _, _, _, _, w_value, _, _, share = _parts(
        slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps, M, D, DAMPED, PRODUCT, BM, BD
    )
    out = multiply(share, multiply(slices, w_value, 0.0, PRODUCT), 0.0, PRODUCT)
    place = (tl.program_id(0) * M + m)[:, None] * D + d[None, :]
    tl.store(out_ptr + place, out, mask=(m < M)[:, None] & (d < D)[None, :])


@triton.jit
def _mix_back(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, d_out_ptr, d_slices_ptr, d_sum_ptr, part_ptr,
    eps, M: tl.constexpr, D: tl.constexpr, DAMPED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    given, slices, total, small, w_query, w_key, w_value, query, key, share = _parts(
        slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps, M, D, DAMPED, PRODUCT, BM, BD
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
    if DAMPED:
        slope = small / ((total + small) * (total + small))
        d_sum = tl.sum(d_slices * given, axis=1) * slope
        tl.store(d_sum_ptr + tl.program_id(0) * M + m, d_sum, mask=m < M)
        d_slices *= (total / (total + small))[:, None]
    tl.store(d_slices_ptr + place, d_slices, mask=inside)
    part = part_ptr + tl.program_id(0) * 3 * D * D + d[:, None] * D + d[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    tl.store(part, multiply(tl.trans(d_query), slices, 0.0, PRODUCT), mask=square)
    tl.store(part + D * D, multiply(tl.trans(d_key), slices, 0.0, PRODUCT), mask=square)
    tl.store(part + 2 * D * D, multiply(tl.trans(d_value), slices, 0.0, PRODUCT), mask=square)


def _product(slices: Tensor, narrow: bool) -> str:
    exact = product_precision(slices)
    return "tf32" if narrow and exact == "ieee" else exact


def mix_forward(
    slices: Tensor, total: Tensor | None, top: Tensor | None, query: Tensor, key: Tensor, value: Tensor,
    eps: float, narrow: bool,
) -> Tensor:  # fmt: skip
    """Slices (P, M, D) mixed; with `total` and `top` (P, M) of a sum-norm they are corrected first."""
    heads, count, width = slices.shape
    out = torch.empty_like(slices)
    _mix[(heads,)](
        slices, slices if total is None else total, slices if top is None else top, query, key, value, out,
        eps, count, width, total is not None, _product(slices, narrow), pad(count), pad(width), num_warps=4,
        **early(slices.device),
    )  # fmt: skip
    return out


def mix_backward(
    slices: Tensor, total: Tensor | None, top: Tensor | None, query: Tensor, key: Tensor, value: Tensor,
    d_out: Tensor, eps: float, narrow: bool, leaves: Leaves = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of slices, of `total` where it is given, and of the three maps."""
    heads, count, width = slices.shape
    d_slices, parts = torch.empty_like(slices), slices.new_empty(heads, 3 * width * width)
    d_total = None if total is None else torch.empty_like(total)
    _mix_back[(heads,)](
        slices, slices if total is None else total, slices if top is None else top, query, key, value, d_out,
        d_slices, slices if d_total is None else d_total, parts, eps,
        count, width, total is not None, _product(slices, narrow), pad(count), pad(width), num_warps=4,
        **early(slices.device),
    )  # fmt: skip
    (sums,) = beside(lambda: (add_rows(parts),), parts, leaves=leaves)
    d_query, d_key, d_value = sums.view(3, width, width)
    return d_slices, d_total, d_query, d_key, d_value
