"""Scatter kernels, forward and backward; axes, parts and partial sums as in `gather`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import (
    dependent_launch,
    exp_shifted,
    log,
    multiply,
    pad,
    product_precision,
    wait_for_previous_kernel,
)
from linearno.ops.triton.tiling import (
    Meshes,
    load_tile,
    mesh_bounds,
    parameter_gradients,
    part_bounds,
    partition_points,
    store_tile,
)


@triton.jit
def _scores(x, weight, bias, m_mask, FULL: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr):
    """Scores (n, M) of a tile of points (n, D); −∞ for padded slices."""
    scores = multiply(x, weight, 0.0, PRECISION)
    if HAS_BIAS:
        scores += bias[None, :]
    return scores if FULL else tl.where(m_mask[None, :], scores, float("-inf"))


@triton.jit
def _exp_and_sum(scores, EXACT: tl.constexpr):
    """exp(score − max), the max over M, and the sum over M."""
    row_max = tl.max(scores, axis=1)
    exp_scores = exp_shifted(scores, row_max[:, None], EXACT)
    return exp_scores, row_max, tl.sum(exp_scores, axis=1)


@triton.jit
def _scatter(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, offset_ptr, out_ptr, log_sum_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    HAS_BIAS: tl.constexpr, WRITE_LOG_SUM: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out = φ value for one part of the points and, with WRITE_LOG_SUM, log Σ_m exp(score)."""
    wait_for_previous_kernel(DEPENDENT)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    m_mask, d_mask, e_mask = m < M, d < D, e < E
    dtype = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=d_mask[:, None] & m_mask[None, :], other=0.0
    )
    weight = (weight * scale).to(dtype)
    bias = scale * tl.load(bias_ptr + m, mask=m_mask, other=0.0).to(tl.float32) if HAS_BIAS else scale
    value = tl.load(
        value_ptr + (head * M + m)[:, None] * E + e[None, :],
        mask=m_mask[:, None] & e_mask[None, :],
        other=0.0,
    ).to(dtype)
    mesh_begin, points = mesh_bounds(head, offset_ptr, N, H, PACKED)
    begin, full_end, end = part_bounds(part, points, BN)
    row = (mesh_begin + begin) * H + head % H
    x_ptr += row * D
    out_ptr += row * E
    log_sum_ptr += row
    EXACT: tl.constexpr = dtype == tl.float32
    for start in range(0, (end if EXACT else full_end) - begin, BN):
        _scatter_tile(
            x_ptr, out_ptr, log_sum_ptr, start, end - begin, weight, bias, m_mask, value,
            H, M, D, E, HAS_BIAS, WRITE_LOG_SUM, EXACT, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip
    if full_end < end and not EXACT:
        _scatter_tile(
            x_ptr, out_ptr, log_sum_ptr, full_end - begin, end - begin, weight, bias, m_mask, value,
            H, M, D, E, HAS_BIAS, WRITE_LOG_SUM, True, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip


@triton.jit
def _scatter_tile(
    x_ptr, out_ptr, log_sum_ptr, start, end, weight, bias, m_mask, value,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    HAS_BIAS: tl.constexpr, WRITE_LOG_SUM: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    scores = _scores(x, weight, bias, m_mask, M == BM, HAS_BIAS, PRECISION)
    exp_scores, row_max, normaliser = _exp_and_sum(scores, x.dtype == tl.float32)
    out = multiply(exp_scores.to(x.dtype), value, 0.0, PRECISION) * (1 / normaliser)[:, None]
    store_tile(out_ptr, out, n, end, H, E, LAST, BE)
    if WRITE_LOG_SUM:
        tl.store(log_sum_ptr + n * H, row_max + log(normaliser, PRECISION), mask=n < end)


@triton.jit
def _scatter_back(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, log_sum_ptr, d_out_ptr, offset_ptr, d_x_ptr, part_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    HAS_BIAS: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradient of x, and partial gradients of weight, bias and value, for one part of the points.

    ∂loss/∂score = φ ∘ (dφ − Σ_m φ dφ) with dφ = dout valueᵀ.
    """
    wait_for_previous_kernel(DEPENDENT)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    m_mask, d_mask, e_mask = m < M, d < D, e < E
    dtype = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=d_mask[:, None] & m_mask[None, :], other=0.0
    )
    weight = (weight * scale).to(dtype)
    bias = scale * tl.load(bias_ptr + m, mask=m_mask, other=0.0).to(tl.float32) if HAS_BIAS else scale
    value = tl.load(
        value_ptr + (head * M + m)[:, None] * E + e[None, :],
        mask=m_mask[:, None] & e_mask[None, :],
        other=0.0,
    ).to(dtype)
    d_weight = tl.zeros([BM, BD], tl.float32)
    d_value = tl.zeros([BM, BE], tl.float32)
    d_bias = tl.zeros([BN, BM], tl.float32)
    mesh_begin, points = mesh_bounds(head, offset_ptr, N, H, PACKED)
    begin, _, end = part_bounds(part, points, BN)
    row = (mesh_begin + begin) * H + head % H
    x_ptr += row * D
    d_x_ptr += row * D
    d_out_ptr += row * E
    log_sum_ptr += row
    for start in range(0, end - begin, BN):  # all tiles masked: a second loop would need more registers
        n = start + tl.arange(0, BN)
        x = load_tile(x_ptr, n, end - begin, H, D, True, BD)
        d_out = load_tile(d_out_ptr, n, end - begin, H, E, True, BE).to(dtype)
        scores = _scores(x, weight, bias, m_mask, M == BM, HAS_BIAS, PRECISION)
        if dtype == tl.float32:
            exp_scores, _row_max, normaliser = _exp_and_sum(scores, True)
            phi = exp_scores * (1 / normaliser)[:, None]
        else:
            log_sum = tl.load(log_sum_ptr + n * H, mask=n < end - begin, other=float("inf"))
            phi = exp_shifted(scores, log_sum[:, None])
        d_phi = multiply(d_out, tl.trans(value), 0.0, PRECISION)
        d_scores = phi * (d_phi - tl.sum(phi * d_phi, axis=1)[:, None])
        if HAS_BIAS:
            d_bias += d_scores
        d_scores = d_scores.to(dtype)
        d_x = multiply(d_scores, tl.trans(weight), 0.0, PRECISION)
        store_tile(d_x_ptr, d_x, n, end - begin, H, D, True, BD)
        d_weight = multiply(tl.trans(d_scores), x, d_weight, PRECISION)
        d_value = multiply(tl.trans(phi.to(dtype)), d_out, d_value, PRECISION)
    base = part_ptr + (head * tl.num_programs(0) + part) * (M * D + M + M * E)
    tl.store(base + m[:, None] * D + d[None, :], d_weight, mask=m_mask[:, None] & d_mask[None, :])
    if HAS_BIAS:
        tl.store(base + M * D + m, tl.sum(d_bias, axis=0), mask=m_mask)
    else:
        tl.store(base + M * D + m, tl.zeros([BM], tl.float32), mask=m_mask)
    tl.store(base + M * D + M + m[:, None] * E + e[None, :], d_value, mask=m_mask[:, None] & e_mask[None, :])


def scatter_forward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, keep_log_sum: bool,
    meshes: Meshes,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """φ value (B, N, H, E) and log Σ_m exp(score) (B, N, H) for the backward pass.

    The latter is empty in float32: its rounding would matter, so the backward pass recomputes the sums.
    """
    keep_log_sum = keep_log_sum and x.dtype != torch.float32
    (heads, width), offsets = x.shape[2:], meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = partition_points("scatter", x, meshes, slices)
    out = x.new_empty(*x.shape[:-1], values)
    log_sum = x.new_empty(x.shape[:-1] if keep_log_sum else (0,), dtype=torch.float32)
    _scatter[(parts, meshes.number * heads)](
        x, weight, scale, weight if bias is None else bias, value, x if offsets is None else offsets, out,
        log_sum, meshes.points, *weight.stride(), heads, slices, width, values, bias is not None,
        keep_log_sum, offsets is not None, product_precision(x, "blocked"),
        pad(slices), pad(width), pad(values), **tile, **dependent_launch(x.device),
    )  # fmt: skip
    return out, log_sum


def scatter_backward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, log_sum: Tensor,
    d_out: Tensor, deferred: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, scale, bias (empty if None) and value."""
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = partition_points("scatter back", x, meshes, slices)
    d_x = torch.empty_like(x)
    part_gradients = x.new_empty(batch * heads, parts, slices * (width + 1 + values), dtype=torch.float32)
    _scatter_back[(parts, batch * heads)](
        x, weight, scale, weight if bias is None else bias, value, log_sum, d_out,
        x if offsets is None else offsets, d_x, part_gradients, meshes.points,
        *weight.stride(), heads, slices, width, values, bias is not None, offsets is not None,
        product_precision(x, "blocked"), pad(slices), pad(width), pad(values), **tile,
        **dependent_launch(x.device),
    )  # fmt: skip
    d_value = torch.empty_like(value)
    d_weight, d_scale, d_bias, _ = parameter_gradients(
        part_gradients, part_gradients.new_empty(0), weight, scale, bias, None, batch, d_value, deferred
    )
    return d_x, d_weight, d_scale, d_bias, d_value
