"""Gather in Triton, forward and backward. No N×M tensor is written, nothing is added atomically.

A program takes a run of points of one head, tile by tile; what it sums over points it writes as a partial
result, and a second small kernel adds these in a fixed order: two runs agree to the bit.

Axes as in `verbs`, with one batch axis: x (B, N, H, D), value (B, N, H, E), weight (D, M), scale (H,),
bias (M,). Scores are (x w + bias) · scale. Products take the precision of x, sums are kept in float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import early, exp, exp_above, follow, log, multiply, pad, product_precision
from linearno.ops.triton.tiling import (
    Meshes,
    load_tile,
    mesh_of,
    run_of,
    runs_of,
    small_gradients,
    store_tile,
)


@triton.jit
def _scores(
    x, weight, bias, slices,
    FULL: tl.constexpr, SCORE: tl.constexpr, BIASED: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Scores (n, M) of a tile of points (n, D) by a weight (D, M) and, where they are normalised
    over M, their softmax. Slices that are not there get none of it."""
    scores = multiply(x, weight, 0.0, PRODUCT)
    if BIASED:
        scores += bias[None, :]
    share = scores
    if SCORE != "linear":
        there = scores if FULL else tl.where(slices[None, :], scores, float("-inf"))
        top = tl.max(there, axis=1)
        share = exp_above(there, top[:, None], x.dtype == tl.float32)
        total = tl.sum(share, axis=1)
        share = share * (1 / total)[:, None]
        level = top + log(total, PRODUCT, x.dtype == tl.float32)
        scores = share if SCORE == "softmax" else scores - level[:, None]
    return scores, share


@triton.jit
def _gather(
    x_ptr, value_ptr, weight_ptr, scale_ptr, bias_ptr, offset_ptr, max_ptr, sum_ptr, out_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, BIASED: tl.constexpr, SAME: tl.constexpr, PACKED: tl.constexpr,
    PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The state of one run of points: maximum, Σw and Σ w v relative to it."""
    follow(EARLY)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    slices, features, values = m < M, d < D, e < E
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[None, :] * WD + m[:, None] * WM, mask=slices[:, None] & features[None, :], other=0.0
    )
    weight = (weight * scale).to(x_ptr.dtype.element_ty)
    bias = scale * tl.load(bias_ptr + m, mask=slices, other=0.0).to(tl.float32) if BIASED else scale
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    mean = tl.zeros([BM, BE], tl.float32)
    first, points = mesh_of(head, offset_ptr, N, H, PACKED)
    begin, whole, end = run_of(part, points, BN)
    row = (first + begin) * H + head % H
    x_ptr += row * D
    value_ptr += row * E
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    for start in range(0, (end if EXACT else whole) - begin, BN):
        top, total, mean = _gather_tile(
            x_ptr, value_ptr, start, end - begin, weight, bias, slices, top, total, mean,
            H, M, D, E, SCORE, BIASED, SAME, EXACT, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip
    if whole < end and not EXACT:
        top, total, mean = _gather_tile(
            x_ptr, value_ptr, whole - begin, end - begin, weight, bias, slices, top, total, mean,
            H, M, D, E, SCORE, BIASED, SAME, True, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip
    place = (head * tl.num_programs(0) + part) * M + m
    tl.store(max_ptr + place, top, mask=slices)
    tl.store(sum_ptr + place, total, mask=slices)
    tl.store(out_ptr + place[:, None] * E + e[None, :], mean, mask=slices[:, None] & values[None, :])


@triton.jit
def _gather_tile(
    x_ptr, value_ptr, start, end, weight, bias, slices, top, total, mean,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, BIASED: tl.constexpr, SAME: tl.constexpr, LAST: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The state with a tile of points more; the LAST one of a mesh may have fewer of them. Products of
    float32 take so many instructions and registers that every tile is taken for the last."""
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    scores = multiply(weight, tl.trans(x), 0.0, PRODUCT)
    if BIASED:
        scores += bias[:, None]
    if SCORE != "linear":  # sums over M are cheap in the other orientation: it is worth a second product
        turned = multiply(x, tl.trans(weight), 0.0, PRODUCT)
        if BIASED:
            turned += bias[None, :]
        if M < BM:
            turned = tl.where(slices[None, :], turned, float("-inf"))
        highest = tl.max(turned, axis=1)
        level = highest + log(tl.sum(exp_above(turned, highest[:, None], EXACT), axis=1), PRODUCT, EXACT)
        scores -= level[None, :]
        if SCORE == "softmax":
            scores = exp(scores, EXACT)
    if LAST:
        scores = tl.where((n < end)[None, :], scores, float("-inf"))
    now = tl.maximum(top, tl.max(scores, axis=1))
    old = exp_above(top, now, EXACT)
    weights = exp_above(scores, now[:, None], EXACT)
    total = total * old + tl.sum(weights, axis=1)
    value = x if SAME else load_tile(value_ptr, n, end, H, E, LAST, BE)
    mean = multiply(weights.to(value.dtype), value, mean * old[:, None], PRODUCT)
    return now, total, mean


@triton.jit
def _merge(
    max_ptr, sum_ptr, part_ptr, map_ptr, top_ptr, total_ptr, mean_ptr, value_ptr, parts, LE, LF,
    M: tl.constexpr, E: tl.constexpr, F: tl.constexpr, MAPPED: tl.constexpr,
    BP: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One slice's state from those of all runs of points: its mean, and the mean's map where there is one."""
    follow(EARLY)
    head, m = tl.program_id(0), tl.program_id(1)
    p, e, f = tl.arange(0, BP), tl.arange(0, BE), tl.arange(0, BF)
    top = tl.full([BP], float("-inf"), tl.float32)
    for start in range(0, parts, BP):
        place = (head * parts + start + p) * M + m
        top = tl.maximum(top, tl.load(max_ptr + place, mask=start + p < parts, other=float("-inf")))
    highest = tl.max(top, axis=0)
    total = tl.zeros([BP], tl.float32)
    mean = tl.zeros([BP, BE], tl.float32)
    for start in range(0, parts, BP):
        there = start + p < parts
        place = (head * parts + start + p) * M + m
        share = exp(tl.load(max_ptr + place, mask=there, other=float("-inf")) - highest, True)
        total += share * tl.load(sum_ptr + place, mask=there, other=0.0)
        mean += share[:, None] * tl.load(
            part_ptr + place[:, None] * E + e[None, :], mask=there[:, None] & (e < E)[None, :], other=0.0
        )
    sums = tl.sum(total, axis=0)
    means = tl.sum(mean, axis=0) / sums
    place = head * M + m
    tl.store(top_ptr + place, highest)
    tl.store(total_ptr + place, sums)
    tl.store(mean_ptr + place * E + e, means, mask=e < E)
    if MAPPED:
        linear = tl.load(
            map_ptr + e[:, None] * LE + f[None, :] * LF, mask=(e < E)[:, None] & (f < F)[None, :], other=0.0
        )
        value = tl.sum(means[:, None] * linear.to(tl.float32), axis=0)
        tl.store(value_ptr + place * F + f, value, mask=f < F)


@triton.jit
def _gather_back(
    x_ptr, value_ptr, weight_ptr, scale_ptr, bias_ptr, map_ptr, max_ptr, sum_ptr, mean_ptr,
    d_sum_ptr, d_value_ptr, through_ptr, offset_ptr, d_x_ptr, d_points_ptr, part_ptr, d_map_ptr,
    N, WD, WM, LE, LF,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    SCORE: tl.constexpr, BIASED: tl.constexpr, SAME: tl.constexpr, MAPPED: tl.constexpr,
    SUMMED: tl.constexpr, THROUGH: tl.constexpr, PACKED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """∂loss/∂score = ψ ∘ (dmean·v − mean·dmean + sum·dsum): all a tile needs is known before it is read."""
    follow(EARLY)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e, f = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, BF)
    slices, features, values = m < M, d < D, e < E
    kind = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=features[:, None] & slices[None, :], other=0.0
    )
    weight = (weight * scale).to(kind)
    bias = scale * tl.load(bias_ptr + m, mask=slices, other=0.0).to(tl.float32) if BIASED else scale
    place = head * M + m
    inside = slices[:, None] & values[None, :]
    mean = tl.load(mean_ptr + place[:, None] * E + e[None, :], mask=inside, other=0.0)
    total = tl.load(sum_ptr + place, mask=slices, other=1.0)
    log_sum = tl.load(max_ptr + place, mask=slices, other=0.0) + tl.log(total)
    if MAPPED:
        mapped = slices[:, None] & (f < F)[None, :]
        d_value = tl.load(d_value_ptr + place[:, None] * F + f[None, :], mask=mapped, other=0.0)
        linear = tl.load(
            map_ptr + e[None, :] * LE + f[:, None] * LF, mask=values[None, :] & (f < F)[:, None], other=0.0
        ).to(tl.float32)
        d_mean = tl.dot(d_value, linear, input_precision="ieee")
        if part == 0:
            d_map = tl.dot(tl.trans(mean), d_value, input_precision="ieee")
            tl.store(
                d_map_ptr + (head * E + e)[:, None] * F + f[None, :],
                d_map,
                mask=values[:, None] & (f < F)[None, :],
            )
    else:
        d_mean = tl.load(d_value_ptr + place[:, None] * E + e[None, :], mask=inside, other=0.0)
    d_mean = d_mean.to(kind)
    offset = -tl.sum(
        mean * d_mean.to(tl.float32), axis=1
    )  # of the rounded one: the scores' gradients sum to zero
    if SUMMED:
        offset += total * tl.load(d_sum_ptr + place, mask=slices, other=0.0)
    d_weight = tl.zeros([BM, BD], tl.float32)
    d_bias = tl.zeros([BN, BM], tl.float32)
    first, points = mesh_of(head, offset_ptr, N, H, PACKED)
    begin, whole, end = run_of(part, points, BN)
    row = (first + begin) * H + head % H
    x_ptr += row * D
    through_ptr += row * D
    d_x_ptr += row * D
    value_ptr += row * E
    d_points_ptr += row * E
    EXACT: tl.constexpr = kind == tl.float32
    for start in range(0, (end if EXACT else whole) - begin, BN):
        d_weight, d_bias = _gather_back_tile(
            x_ptr, value_ptr, through_ptr, d_x_ptr, d_points_ptr, start, end - begin,
            weight, bias, slices, log_sum, d_mean, offset, d_weight, d_bias,
            H, M, D, E, SCORE, BIASED, SAME, THROUGH, EXACT, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip
    if whole < end and not EXACT:
        d_weight, d_bias = _gather_back_tile(
            x_ptr, value_ptr, through_ptr, d_x_ptr, d_points_ptr, whole - begin, end - begin,
            weight, bias, slices, log_sum, d_mean, offset, d_weight, d_bias,
            H, M, D, E, SCORE, BIASED, SAME, THROUGH, True, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip
    base = part_ptr + (head * tl.num_programs(0) + part) * (M * D + M)
    tl.store(base + m[:, None] * D + d[None, :], d_weight, mask=slices[:, None] & features[None, :])
    if BIASED:
        tl.store(base + M * D + m, tl.sum(d_bias, axis=0), mask=slices)
    else:
        tl.store(base + M * D + m, tl.zeros([BM], tl.float32), mask=slices)


@triton.jit
def _gather_back_tile(
    x_ptr, value_ptr, through_ptr, d_x_ptr, d_points_ptr, start, end,
    weight, bias, slices, log_sum, d_mean, offset, d_weight, d_bias,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    SCORE: tl.constexpr, BIASED: tl.constexpr, SAME: tl.constexpr, THROUGH: tl.constexpr, LAST: tl.constexpr,
    PRODUCT: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradients at a tile of points, and what it adds to those of weight and bias."""
    kind = x_ptr.dtype.element_ty
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    value = x if SAME else load_tile(value_ptr, n, end, H, E, LAST, BE)
    through = load_tile(through_ptr, n, end, H, D, LAST, BD) if THROUGH else 0.0  # early: it takes its time
    scores, share = _scores(x, weight, bias, slices, M == BM, SCORE, BIASED, PRODUCT)
    psi = exp_above(scores, log_sum[None, :], kind == tl.float32)
    if M < BM:
        psi = tl.where(slices[None, :], psi, 0.0)
    if LAST:
        psi = tl.where((n < end)[:, None], psi, 0.0)
    d_scores = psi * (multiply(value, tl.trans(d_mean), 0.0, PRODUCT) + offset[None, :])
    if SCORE == "softmax":
        d_scores = share * (d_scores - tl.sum(share * d_scores, axis=1)[:, None])
    if SCORE == "log_softmax":
        d_scores = d_scores - share * tl.sum(d_scores, axis=1)[:, None]
    if BIASED:
        d_bias += d_scores
    d_scores = d_scores.to(kind)
    d_weight = multiply(tl.trans(d_scores), x, d_weight, PRODUCT)
    d_x = multiply(d_scores, tl.trans(weight), 0.0, PRODUCT)
    d_points = multiply(psi.to(kind), d_mean, 0.0, PRODUCT)
    if SAME:
        d_x += d_points
    else:
        store_tile(d_points_ptr, d_points, n, end, H, E, LAST, BE)
    if THROUGH:
        d_x += through
    store_tile(d_x_ptr, d_x, n, end, H, D, LAST, BD)
    return d_weight, d_bias


def gather_forward(
    x: Tensor, value: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, linear: Tensor | None,
    score: str, same: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(max, sum, mean, and the mean mapped by `linear` (E, F): empty where it is not given)."""
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = weight.shape[1], value.shape[-1]
    parts, tile = runs_of("gather", x, meshes, slices, normed=score != "linear")
    tops, totals = x.new_empty(2, batch * heads, parts, slices, dtype=torch.float32)
    sums = x.new_empty(batch * heads, parts, slices, values, dtype=torch.float32)
    _gather[(parts, batch * heads)](
        x, value, weight, scale, weight if bias is None else bias, x if offsets is None else offsets,
        tops, totals, sums, meshes.points,
        *weight.stride(), heads, slices, width, values, score, bias is not None, same, offsets is not None,
        product_precision(x, "careful"),
        pad(slices), pad(width), pad(values), **tile, **early(x.device),
    )  # fmt: skip
    top = x.new_empty(batch, heads, slices, dtype=torch.float32)
    total = torch.empty_like(top)
    mean = x.new_empty(batch, heads, slices, values, dtype=torch.float32)
    mapped = values if linear is None else linear.shape[1]
    size = (batch, heads, slices, mapped) if linear is not None else (0,)
    out = x.new_empty(size, dtype=torch.float32)
    _merge[(batch * heads, slices)](
        tops, totals, sums, weight if linear is None else linear, top, total, mean, out, parts,
        *(weight if linear is None else linear).stride(), slices, values, mapped, linear is not None,
        32, pad(values), pad(mapped), num_warps=1, **early(x.device),
    )  # fmt: skip
    return top, total, mean, out


def gather_backward(
    x: Tensor, value: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, linear: Tensor | None,
    top: Tensor, total: Tensor, mean: Tensor, d_sum: Tensor | None, d_value: Tensor, through: Tensor | None,
    score: str, same: bool, late: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, value, weight, scale, bias and linear; what has none comes back empty.

    `through` is a gradient of x from elsewhere, added on the way.
    """
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = weight.shape[1], value.shape[-1]
    mapped = values if linear is None else linear.shape[1]
    parts, tile = runs_of("gather back", x, meshes, slices, normed=score != "linear")
    d_x = torch.empty_like(x)
    d_points = x.new_empty(0) if same else torch.empty_like(value)
    sums = x.new_empty(batch * heads, parts, slices * (width + 1), dtype=torch.float32)
    d_maps = x.new_empty(batch * heads if linear is not None else 0, values, mapped, dtype=torch.float32)
    _gather_back[(parts, batch * heads)](
        x, value, weight, scale, weight if bias is None else bias, weight if linear is None else linear,
        top, total, mean, top if d_sum is None else d_sum, d_value, x if through is None else through,
        x if offsets is None else offsets, d_x, d_points, sums, d_maps, meshes.points,
        *weight.stride(), *(weight if linear is None else linear).stride(),
        heads, slices, width, values, mapped,
        score, bias is not None, same, linear is not None, d_sum is not None, through is not None,
        offsets is not None, product_precision(x, "careful"),
        pad(slices), pad(width), pad(values), pad(mapped), **tile, **early(x.device),
    )  # fmt: skip
    d_weight, d_scale, d_bias, d_map = small_gradients(
        sums, d_maps, weight, scale, bias, linear, batch, None, late
    )
    return d_x, d_points, d_weight, d_scale, d_bias, d_map
