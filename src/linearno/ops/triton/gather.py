"""Gather kernels, forward and backward, without N×M tensors and atomics.

Each program loops over the tiles of one part of the points of a head and writes partial sums. A second kernel
adds them in a fixed order: results are deterministic.

Axes as in `gather_scatter`, with one batch axis: x (B, N, H, D), value (B, N, H, E), weight (D, M), scale
(H,), bias (M,). Scores are (x w + bias) · scale. Products have the precision of x, sums are float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import (
    dependent_launch,
    exp,
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
def _scores(
    x, weight, bias, m_mask,
    FULL: tl.constexpr, SCORE: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (n, M) of a tile of points (n, D), mapped by SCORE, and their softmax over M (if not "linear"),
    which is zero for padded slices."""
    scores = multiply(x, weight, 0.0, PRECISION)
    if HAS_BIAS:
        scores += bias[None, :]
    softmax = scores
    if SCORE != "linear":
        present = scores if FULL else tl.where(m_mask[None, :], scores, float("-inf"))
        row_max = tl.max(present, axis=1)
        softmax = exp_shifted(present, row_max[:, None], x.dtype == tl.float32)
        normaliser = tl.sum(softmax, axis=1)
        softmax = softmax * (1 / normaliser)[:, None]
        log_sum = row_max + log(normaliser, PRECISION, x.dtype == tl.float32)
        scores = softmax if SCORE == "softmax" else scores - log_sum[:, None]
    return scores, softmax


@triton.jit
def _gather(
    x_ptr, value_ptr, weight_ptr, scale_ptr, bias_ptr, offset_ptr, max_ptr, sum_ptr, out_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, HAS_BIAS: tl.constexpr, VALUE_IS_X: tl.constexpr, PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Partial state of one part of the points: max, Σ exp(score − max) and Σ exp(score − max) v."""
    wait_for_previous_kernel(DEPENDENT)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    m_mask, d_mask, e_mask = m < M, d < D, e < E
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[None, :] * WD + m[:, None] * WM, mask=m_mask[:, None] & d_mask[None, :], other=0.0
    )
    weight = (weight * scale).to(x_ptr.dtype.element_ty)
    bias = scale * tl.load(bias_ptr + m, mask=m_mask, other=0.0).to(tl.float32) if HAS_BIAS else scale
    maximum = tl.full([BM], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BM], tl.float32)
    weighted_sum = tl.zeros([BM, BE], tl.float32)
    mesh_begin, points = mesh_bounds(head, offset_ptr, N, H, PACKED)
    begin, full_end, end = part_bounds(part, points, BN)
    row = (mesh_begin + begin) * H + head % H
    x_ptr += row * D
    value_ptr += row * E
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    for start in range(0, (end if EXACT else full_end) - begin, BN):
        maximum, weight_sum, weighted_sum = _gather_tile(
            x_ptr, value_ptr, start, end - begin, weight, bias, m_mask, maximum, weight_sum, weighted_sum,
            H, M, D, E, SCORE, HAS_BIAS, VALUE_IS_X, EXACT, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip
    if full_end < end and not EXACT:
        maximum, weight_sum, weighted_sum = _gather_tile(
            x_ptr, value_ptr, full_end - begin, end - begin, weight, bias, m_mask, maximum, weight_sum,
            weighted_sum, H, M, D, E, SCORE, HAS_BIAS, VALUE_IS_X, True, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip
    index = (head * tl.num_programs(0) + part) * M + m
    tl.store(max_ptr + index, maximum, mask=m_mask)
    tl.store(sum_ptr + index, weight_sum, mask=m_mask)
    tl.store(out_ptr + index[:, None] * E + e[None, :], weighted_sum, mask=m_mask[:, None] & e_mask[None, :])


@triton.jit
def _gather_tile(
    x_ptr, value_ptr, start, end, weight, bias, m_mask, maximum, weight_sum, weighted_sum,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, HAS_BIAS: tl.constexpr, VALUE_IS_X: tl.constexpr, LAST: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Update the partial state by a tile of points (online softmax). Only LAST tiles mask points; in float32
    every tile is one, as code for both would need too many registers."""
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    scores = multiply(weight, tl.trans(x), 0.0, PRECISION)
    if HAS_BIAS:
        scores += bias[:, None]
    if SCORE != "linear":  # a second, transposed product makes sums over M cheap
        transposed = multiply(x, tl.trans(weight), 0.0, PRECISION)
        if HAS_BIAS:
            transposed += bias[None, :]
        if M < BM:
            transposed = tl.where(m_mask[None, :], transposed, float("-inf"))
        row_max = tl.max(transposed, axis=1)
        log_sum = row_max + log(
            tl.sum(exp_shifted(transposed, row_max[:, None], EXACT), axis=1), PRECISION, EXACT
        )
        scores -= log_sum[None, :]
        if SCORE == "softmax":
            scores = exp(scores, EXACT)
    if LAST:
        scores = tl.where((n < end)[None, :], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    rescale = exp_shifted(maximum, new_maximum, EXACT)
    weights = exp_shifted(scores, new_maximum[:, None], EXACT)
    weight_sum = weight_sum * rescale + tl.sum(weights, axis=1)
    value = x if VALUE_IS_X else load_tile(value_ptr, n, end, H, E, LAST, BE)
    weighted_sum = multiply(weights.to(value.dtype), value, weighted_sum * rescale[:, None], PRECISION)
    return new_maximum, weight_sum, weighted_sum


@triton.jit
def _merge(
    part_max_ptr, part_sum_ptr, part_value_ptr, project_ptr, max_ptr, sum_ptr, mean_ptr, projected_ptr, parts,
    PE, PF, M: tl.constexpr, E: tl.constexpr, F: tl.constexpr, HAS_PROJECT: tl.constexpr,
    BP: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Merge the partial states of one slice of a head; with HAS_PROJECT also project the mean (E) to (F)."""
    wait_for_previous_kernel(DEPENDENT)
    head, m = tl.program_id(0), tl.program_id(1)
    p, e, f = tl.arange(0, BP), tl.arange(0, BE), tl.arange(0, BF)
    part_max = tl.full([BP], float("-inf"), tl.float32)
    for start in range(0, parts, BP):
        index = (head * parts + start + p) * M + m
        part_max = tl.maximum(
            part_max, tl.load(part_max_ptr + index, mask=start + p < parts, other=float("-inf"))
        )
    maximum = tl.max(part_max, axis=0)
    sum_parts = tl.zeros([BP], tl.float32)
    value_parts = tl.zeros([BP, BE], tl.float32)
    for start in range(0, parts, BP):
        valid = start + p < parts
        index = (head * parts + start + p) * M + m
        factor = exp(tl.load(part_max_ptr + index, mask=valid, other=float("-inf")) - maximum, True)
        sum_parts += factor * tl.load(part_sum_ptr + index, mask=valid, other=0.0)
        value_parts += factor[:, None] * tl.load(
            part_value_ptr + index[:, None] * E + e[None, :],
            mask=valid[:, None] & (e < E)[None, :],
            other=0.0,
        )
    weight_sum = tl.sum(sum_parts, axis=0)
    mean = tl.sum(value_parts, axis=0) / weight_sum
    index = head * M + m
    tl.store(max_ptr + index, maximum)
    tl.store(sum_ptr + index, weight_sum)
    tl.store(mean_ptr + index * E + e, mean, mask=e < E)
    if HAS_PROJECT:
        project = tl.load(
            project_ptr + e[:, None] * PE + f[None, :] * PF,
            mask=(e < E)[:, None] & (f < F)[None, :],
            other=0.0,
        )
        projected = tl.sum(mean[:, None] * project.to(tl.float32), axis=0)
        tl.store(projected_ptr + index * F + f, projected, mask=f < F)


@triton.jit
def _gather_back(
    x_ptr, value_ptr, weight_ptr, scale_ptr, bias_ptr, project_ptr, max_ptr, sum_ptr, mean_ptr,
    d_sum_ptr, d_value_ptr, d_passthrough_ptr, offset_ptr, d_x_ptr, d_points_ptr, part_ptr, d_project_ptr,
    N, WD, WM, PE, PF,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    SCORE: tl.constexpr, HAS_BIAS: tl.constexpr, VALUE_IS_X: tl.constexpr, HAS_PROJECT: tl.constexpr,
    HAS_D_SUM: tl.constexpr, HAS_PASSTHROUGH: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of x and value, and partial gradients of weight and bias, for one part of the points.

    ∂loss/∂score = ψ ∘ (dmean·v − mean·dmean + sum·dsum), in one pass over the points.
    """
    wait_for_previous_kernel(DEPENDENT)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e, f = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, BF)
    m_mask, d_mask, e_mask = m < M, d < D, e < E
    dtype = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=d_mask[:, None] & m_mask[None, :], other=0.0
    )
    weight = (weight * scale).to(dtype)
    bias = scale * tl.load(bias_ptr + m, mask=m_mask, other=0.0).to(tl.float32) if HAS_BIAS else scale
    index = head * M + m
    inside = m_mask[:, None] & e_mask[None, :]
    mean = tl.load(mean_ptr + index[:, None] * E + e[None, :], mask=inside, other=0.0)
    weight_sum = tl.load(sum_ptr + index, mask=m_mask, other=1.0)
    log_sum = tl.load(max_ptr + index, mask=m_mask, other=0.0) + tl.log(weight_sum)
    if HAS_PROJECT:
        project_mask = m_mask[:, None] & (f < F)[None, :]
        d_value = tl.load(d_value_ptr + index[:, None] * F + f[None, :], mask=project_mask, other=0.0)
        project = tl.load(
            project_ptr + e[None, :] * PE + f[:, None] * PF,
            mask=e_mask[None, :] & (f < F)[:, None],
            other=0.0,
        ).to(tl.float32)
        d_mean = tl.dot(d_value, project, input_precision="ieee")
        if part == 0:
            d_project = tl.dot(tl.trans(mean), d_value, input_precision="ieee")
            tl.store(
                d_project_ptr + (head * E + e)[:, None] * F + f[None, :],
                d_project,
                mask=e_mask[:, None] & (f < F)[None, :],
            )
    else:
        d_mean = tl.load(d_value_ptr + index[:, None] * E + e[None, :], mask=inside, other=0.0)
    d_mean = d_mean.to(dtype)
    # of the rounded d_mean, so that gradients of scores sum to zero
    shift = -tl.sum(mean * d_mean.to(tl.float32), axis=1)
    if HAS_D_SUM:
        shift += weight_sum * tl.load(d_sum_ptr + index, mask=m_mask, other=0.0)
    d_weight = tl.zeros([BM, BD], tl.float32)
    d_bias = tl.zeros([BN, BM], tl.float32)
    mesh_begin, points = mesh_bounds(head, offset_ptr, N, H, PACKED)
    begin, full_end, end = part_bounds(part, points, BN)
    row = (mesh_begin + begin) * H + head % H
    x_ptr += row * D
    d_passthrough_ptr += row * D
    d_x_ptr += row * D
    value_ptr += row * E
    d_points_ptr += row * E
    EXACT: tl.constexpr = dtype == tl.float32
    for start in range(0, (end if EXACT else full_end) - begin, BN):
        d_weight, d_bias = _gather_back_tile(
            x_ptr, value_ptr, d_passthrough_ptr, d_x_ptr, d_points_ptr, start, end - begin,
            weight, bias, m_mask, log_sum, d_mean, shift, d_weight, d_bias,
            H, M, D, E, SCORE, HAS_BIAS, VALUE_IS_X, HAS_PASSTHROUGH, EXACT, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip
    if full_end < end and not EXACT:
        d_weight, d_bias = _gather_back_tile(
            x_ptr, value_ptr, d_passthrough_ptr, d_x_ptr, d_points_ptr, full_end - begin, end - begin,
            weight, bias, m_mask, log_sum, d_mean, shift, d_weight, d_bias,
            H, M, D, E, SCORE, HAS_BIAS, VALUE_IS_X, HAS_PASSTHROUGH, True, PRECISION, BM, BD, BE, BN,
        )  # fmt: skip
    base = part_ptr + (head * tl.num_programs(0) + part) * (M * D + M)
    tl.store(base + m[:, None] * D + d[None, :], d_weight, mask=m_mask[:, None] & d_mask[None, :])
    if HAS_BIAS:
        tl.store(base + M * D + m, tl.sum(d_bias, axis=0), mask=m_mask)
    else:
        tl.store(base + M * D + m, tl.zeros([BM], tl.float32), mask=m_mask)


@triton.jit
def _gather_back_tile(
    x_ptr, value_ptr, d_passthrough_ptr, d_x_ptr, d_points_ptr, start, end,
    weight, bias, m_mask, log_sum, d_mean, shift, d_weight, d_bias,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, HAS_BIAS: tl.constexpr, VALUE_IS_X: tl.constexpr, HAS_PASSTHROUGH: tl.constexpr,
    LAST: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Store the gradients at a tile of points; add to those of weight and bias."""
    dtype = x_ptr.dtype.element_ty
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    value = x if VALUE_IS_X else load_tile(value_ptr, n, end, H, E, LAST, BE)
    # loaded early to hide its latency
    d_passthrough = load_tile(d_passthrough_ptr, n, end, H, D, LAST, BD) if HAS_PASSTHROUGH else 0.0
    scores, softmax = _scores(x, weight, bias, m_mask, M == BM, SCORE, HAS_BIAS, PRECISION)
    psi = exp_shifted(scores, log_sum[None, :], dtype == tl.float32)
    if M < BM:
        psi = tl.where(m_mask[None, :], psi, 0.0)
    if LAST:
        psi = tl.where((n < end)[:, None], psi, 0.0)
    d_scores = psi * (multiply(value, tl.trans(d_mean), 0.0, PRECISION) + shift[None, :])
    if SCORE == "softmax":
        d_scores = softmax * (d_scores - tl.sum(softmax * d_scores, axis=1)[:, None])
    if SCORE == "log_softmax":
        d_scores = d_scores - softmax * tl.sum(d_scores, axis=1)[:, None]
    if HAS_BIAS:
        d_bias += d_scores
    d_scores = d_scores.to(dtype)
    d_weight = multiply(tl.trans(d_scores), x, d_weight, PRECISION)
    d_x = multiply(d_scores, tl.trans(weight), 0.0, PRECISION)
    d_points = multiply(psi.to(dtype), d_mean, 0.0, PRECISION)
    if VALUE_IS_X:
        d_x += d_points
    else:
        store_tile(d_points_ptr, d_points, n, end, H, E, LAST, BE)
    if HAS_PASSTHROUGH:
        d_x += d_passthrough
    store_tile(d_x_ptr, d_x, n, end, H, D, LAST, BD)
    return d_weight, d_bias


def gather_forward(
    x: Tensor, value: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, project: Tensor | None,
    score: str, value_is_x: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The state max, sum (B, H, M), mean (B, H, M, E), and mean · project (B, H, M, F) or empty."""
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = weight.shape[1], value.shape[-1]
    parts, tile = partition_points("gather", x, meshes, slices, normalised=score != "linear")
    part_maxima, part_sums = x.new_empty(2, batch * heads, parts, slices, dtype=torch.float32)
    part_values = x.new_empty(batch * heads, parts, slices, values, dtype=torch.float32)
    _gather[(parts, batch * heads)](
        x, value, weight, scale, weight if bias is None else bias, x if offsets is None else offsets,
        part_maxima, part_sums, part_values, meshes.points,
        *weight.stride(), heads, slices, width, values, score, bias is not None, value_is_x,
        offsets is not None, product_precision(x, "blocked"),
        pad(slices), pad(width), pad(values), **tile, **dependent_launch(x.device),
    )  # fmt: skip
    maximum = x.new_empty(batch, heads, slices, dtype=torch.float32)
    weight_sum = torch.empty_like(maximum)
    mean = x.new_empty(batch, heads, slices, values, dtype=torch.float32)
    projected_width = values if project is None else project.shape[1]
    size = (batch, heads, slices, projected_width) if project is not None else (0,)
    projected = x.new_empty(size, dtype=torch.float32)
    _merge[(batch * heads, slices)](
        part_maxima, part_sums, part_values, weight if project is None else project, maximum, weight_sum,
        mean, projected, parts, *(weight if project is None else project).stride(), slices, values,
        projected_width, project is not None, 32, pad(values), pad(projected_width), num_warps=1,
        **dependent_launch(x.device),
    )  # fmt: skip
    return maximum, weight_sum, mean, projected


def gather_backward(
    x: Tensor, value: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, project: Tensor | None,
    maximum: Tensor, weight_sum: Tensor, mean: Tensor, d_sum: Tensor | None, d_value: Tensor,
    d_passthrough: Tensor | None, score: str, value_is_x: bool, deferred: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, value, weight, scale, bias and project; empty where there is none.

    `d_passthrough` is added to the gradient of x. `deferred`: compute parameter gradients on a side stream.
    """
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = weight.shape[1], value.shape[-1]
    projected_width = values if project is None else project.shape[1]
    parts, tile = partition_points("gather back", x, meshes, slices, normalised=score != "linear")
    d_x = torch.empty_like(x)
    d_points = x.new_empty(0) if value_is_x else torch.empty_like(value)
    part_gradients = x.new_empty(batch * heads, parts, slices * (width + 1), dtype=torch.float32)
    d_project_parts = x.new_empty(
        batch * heads if project is not None else 0, values, projected_width, dtype=torch.float32
    )
    _gather_back[(parts, batch * heads)](
        x, value, weight, scale, weight if bias is None else bias, weight if project is None else project,
        maximum, weight_sum, mean, maximum if d_sum is None else d_sum, d_value,
        x if d_passthrough is None else d_passthrough, x if offsets is None else offsets, d_x, d_points,
        part_gradients, d_project_parts, meshes.points, *weight.stride(),
        *(weight if project is None else project).stride(), heads, slices, width, values, projected_width,
        score, bias is not None, value_is_x, project is not None, d_sum is not None,
        d_passthrough is not None, offsets is not None, product_precision(x, "blocked"),
        pad(slices), pad(width), pad(values), pad(projected_width), **tile, **dependent_launch(x.device),
    )  # fmt: skip
    d_weight, d_scale, d_bias, d_project = parameter_gradients(
        part_gradients, d_project_parts, weight, scale, bias, project, batch, None, deferred
    )
    return d_x, d_points, d_weight, d_scale, d_bias, d_project
