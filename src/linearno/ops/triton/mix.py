"""Softmax attention among the slices of a head, optionally after the sum-norm's correction; one program per
head.

Axes: P heads of all samples, M slices, D width. Tensors are float32, as they are small; products are tf32 if
the surrounding layers compute in bf16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import ParameterUses, run_on_side_stream
from linearno.ops.triton.common import (
    dependent_launch,
    exp,
    multiply,
    pad,
    product_precision,
    wait_for_previous_kernel,
)
from linearno.ops.triton.norm import sum_rows


@triton.jit
def _attention(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps,
    M: tl.constexpr, D: tl.constexpr, HAS_EPS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Load a head and compute its attention matrix softmax(S Wq (S Wk)ᵀ / √D).

    Returns slices before and after the correction Σw / (Σw + eps) with Σw = sum · exp(max), sum, eps ·
    exp(−max), the three maps (in, out), query, key, and the attention (M, M).
    """
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    inside = (m < M)[:, None] & (d < D)[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    transposed = d[None, :] * D + d[:, None]
    index = tl.program_id(0) * M + m
    raw_slices = tl.load(slices_ptr + index[:, None] * D + d[None, :], mask=inside, other=0.0)
    slices, weight_sum, eps_term = raw_slices, 1.0, 0.0
    if HAS_EPS:
        weight_sum = tl.load(sum_ptr + index, mask=m < M, other=1.0)
        maximum = tl.load(max_ptr + index, mask=m < M, other=0.0)
        eps_term = eps * tl.exp(tl.minimum(-maximum, 80.0))  # finite for slices without points
        slices = raw_slices * (weight_sum / (weight_sum + eps_term))[:, None]
    w_query = tl.load(query_ptr + transposed, mask=square, other=0.0)
    w_key = tl.load(key_ptr + transposed, mask=square, other=0.0)
    w_value = tl.load(value_ptr + transposed, mask=square, other=0.0)
    query, key = multiply(slices, w_query, 0.0, PRECISION), multiply(slices, w_key, 0.0, PRECISION)
    scores = multiply(query, tl.trans(key), 0.0, PRECISION) / tl.sqrt(float(D))
    scores = tl.where((m < M)[None, :], scores, float("-inf"))
    attention = exp(scores - tl.max(scores, axis=1)[:, None], True)
    attention = attention * (1 / tl.sum(attention, axis=1))[:, None]
    attention = tl.where((m < M)[:, None], attention, 0.0)
    return raw_slices, slices, weight_sum, eps_term, w_query, w_key, w_value, query, key, attention


@triton.jit
def _mix(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, out_ptr, eps,
    M: tl.constexpr, D: tl.constexpr, HAS_EPS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous_kernel(DEPENDENT)
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    _, slices, _, _, _, _, w_value, _, _, attention = _attention(
        slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps, M, D, HAS_EPS, PRECISION, BM, BD
    )
    out = multiply(attention, multiply(slices, w_value, 0.0, PRECISION), 0.0, PRECISION)
    index = (tl.program_id(0) * M + m)[:, None] * D + d[None, :]
    tl.store(out_ptr + index, out, mask=(m < M)[:, None] & (d < D)[None, :])


@triton.jit
def _mix_back(
    slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, d_out_ptr, d_slices_ptr, d_sum_ptr, part_ptr,
    eps, M: tl.constexpr, D: tl.constexpr, HAS_EPS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous_kernel(DEPENDENT)
    m, d = tl.arange(0, BM), tl.arange(0, BD)
    raw_slices, slices, weight_sum, eps_term, w_query, w_key, w_value, query, key, attention = _attention(
        slices_ptr, sum_ptr, max_ptr, query_ptr, key_ptr, value_ptr, eps, M, D, HAS_EPS, PRECISION, BM, BD
    )
    inside = (m < M)[:, None] & (d < D)[None, :]
    index = (tl.program_id(0) * M + m)[:, None] * D + d[None, :]
    d_out = tl.load(d_out_ptr + index, mask=inside, other=0.0)
    d_value = multiply(tl.trans(attention), d_out, 0.0, PRECISION)
    d_attention = multiply(d_out, tl.trans(multiply(slices, w_value, 0.0, PRECISION)), 0.0, PRECISION)
    d_scores = (
        attention * (d_attention - tl.sum(attention * d_attention, axis=1)[:, None]) / tl.sqrt(float(D))
    )
    d_query, d_key = (
        multiply(d_scores, key, 0.0, PRECISION),
        multiply(tl.trans(d_scores), query, 0.0, PRECISION),
    )
    d_slices = multiply(d_query, tl.trans(w_query), 0.0, PRECISION) + multiply(
        d_key, tl.trans(w_key), 0.0, PRECISION
    )
    d_slices += multiply(d_value, tl.trans(w_value), 0.0, PRECISION)
    if HAS_EPS:
        derivative = eps_term / ((weight_sum + eps_term) * (weight_sum + eps_term))
        d_sum = tl.sum(d_slices * raw_slices, axis=1) * derivative
        tl.store(d_sum_ptr + tl.program_id(0) * M + m, d_sum, mask=m < M)
        d_slices *= (weight_sum / (weight_sum + eps_term))[:, None]
    tl.store(d_slices_ptr + index, d_slices, mask=inside)
    part = part_ptr + tl.program_id(0) * 3 * D * D + d[:, None] * D + d[None, :]
    square = (d < D)[:, None] & (d < D)[None, :]
    tl.store(part, multiply(tl.trans(d_query), slices, 0.0, PRECISION), mask=square)
    tl.store(part + D * D, multiply(tl.trans(d_key), slices, 0.0, PRECISION), mask=square)
    tl.store(part + 2 * D * D, multiply(tl.trans(d_value), slices, 0.0, PRECISION), mask=square)


def _precision(slices: Tensor, use_bf16: bool) -> str:
    precision = product_precision(slices)
    return "tf32" if use_bf16 and precision == "ieee" else precision


def mix_forward(
    slices: Tensor, weight_sum: Tensor | None, maximum: Tensor | None, query: Tensor, key: Tensor,
    value: Tensor, eps: float, use_bf16: bool,
) -> Tensor:  # fmt: skip
    """Attention among slices (P, M, D), corrected first if `weight_sum` and `maximum` (P, M) are given."""
    heads, count, width = slices.shape
    out = torch.empty_like(slices)
    _mix[(heads,)](
        slices, slices if weight_sum is None else weight_sum, slices if maximum is None else maximum, query,
        key, value, out, eps, count, width, weight_sum is not None, _precision(slices, use_bf16), pad(count),
        pad(width), num_warps=4, **dependent_launch(slices.device),
    )  # fmt: skip
    return out


def mix_backward(
    slices: Tensor, weight_sum: Tensor | None, maximum: Tensor | None, query: Tensor, key: Tensor,
    value: Tensor, d_out: Tensor, eps: float, use_bf16: bool, uses: ParameterUses = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of slices, of `weight_sum` if given, and of the three maps."""
    heads, count, width = slices.shape
    d_slices, partial_sums = torch.empty_like(slices), slices.new_empty(heads, 3 * width * width)
    d_weight_sum = None if weight_sum is None else torch.empty_like(weight_sum)
    _mix_back[(heads,)](
        slices, slices if weight_sum is None else weight_sum, slices if maximum is None else maximum, query,
        key, value, d_out, d_slices, slices if d_weight_sum is None else d_weight_sum, partial_sums, eps,
        count, width, weight_sum is not None, _precision(slices, use_bf16), pad(count), pad(width),
        num_warps=4, **dependent_launch(slices.device),
    )  # fmt: skip
    (sums,) = run_on_side_stream(lambda: (sum_rows(partial_sums),), partial_sums, uses=uses)
    d_query, d_key, d_value = sums.view(3, width, width)
    return d_slices, d_weight_sum, d_query, d_key, d_value
