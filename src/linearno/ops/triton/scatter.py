"""Scatter in Triton, forward and backward: made as `gather` is, with its axes and its sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import early, exp_above, follow, log, multiply, pad, product_precision
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
def _scores(x, weight, bias, slices, FULL: tl.constexpr, BIASED: tl.constexpr, PRODUCT: tl.constexpr):
    """Of a tile (n, M); slices that are not there have none."""
    scores = multiply(x, weight, 0.0, PRODUCT)
    if BIASED:
        scores += bias[None, :]
    return scores if FULL else tl.where(slices[None, :], scores, float("-inf"))


@triton.jit
def _shares(scores, EXACT: tl.constexpr):
    """exp(score − maximum), the maximum over M, and the sum."""
    top = tl.max(scores, axis=1)
    share = exp_above(scores, top[:, None], EXACT)
    return share, top, tl.sum(share, axis=1)


@triton.jit
def _scatter(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, offset_ptr, out_ptr, level_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BIASED: tl.constexpr, KEEP: tl.constexpr, PACKED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """φ value and, for the backward pass, the logarithm of the sum over M that φ was divided by."""
    follow(EARLY)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    slices, features, values = m < M, d < D, e < E
    kind = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=features[:, None] & slices[None, :], other=0.0
    )
    weight = (weight * scale).to(kind)
    bias = scale * tl.load(bias_ptr + m, mask=slices, other=0.0).to(tl.float32) if BIASED else scale
    value = tl.load(
        value_ptr + (head * M + m)[:, None] * E + e[None, :],
        mask=slices[:, None] & values[None, :],
        other=0.0,
    ).to(kind)
    first, points = mesh_of(head, offset_ptr, N, H, PACKED)
    begin, whole, end = run_of(part, points, BN)
    row = (first + begin) * H + head % H
    x_ptr += row * D
    out_ptr += row * E
    level_ptr += row
    EXACT: tl.constexpr = kind == tl.float32
    for start in range(0, (end if EXACT else whole) - begin, BN):
        _scatter_tile(
            x_ptr, out_ptr, level_ptr, start, end - begin, weight, bias, slices, value,
            H, M, D, E, BIASED, KEEP, EXACT, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip
    if whole < end and not EXACT:
        _scatter_tile(
            x_ptr, out_ptr, level_ptr, whole - begin, end - begin, weight, bias, slices, value,
            H, M, D, E, BIASED, KEEP, True, PRODUCT, BM, BD, BE, BN,
        )  # fmt: skip


@triton.jit
def _scatter_tile(
    x_ptr, out_ptr, level_ptr, start, end, weight, bias, slices, value,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BIASED: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = start + tl.arange(0, BN)
    x = load_tile(x_ptr, n, end, H, D, LAST, BD)
    scores = _scores(x, weight, bias, slices, M == BM, BIASED, PRODUCT)
    share, top, total = _shares(scores, x.dtype == tl.float32)
    out = multiply(share.to(x.dtype), value, 0.0, PRODUCT) * (1 / total)[:, None]
    store_tile(out_ptr, out, n, end, H, E, LAST, BE)
    if KEEP:
        tl.store(level_ptr + n * H, top + log(total, PRODUCT), mask=n < end)


@triton.jit
def _scatter_back(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, level_ptr, d_out_ptr, offset_ptr, d_x_ptr, part_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BIASED: tl.constexpr, PACKED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """∂loss/∂score = φ ∘ (dφ − Σ_m φ dφ)."""
    follow(EARLY)
    part, head = tl.program_id(0), tl.program_id(1)
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BE)
    slices, features, values = m < M, d < D, e < E
    kind = x_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + head % H).to(tl.float32)
    weight = tl.load(
        weight_ptr + d[:, None] * WD + m[None, :] * WM, mask=features[:, None] & slices[None, :], other=0.0
    )
    weight = (weight * scale).to(kind)
    bias = scale * tl.load(bias_ptr + m, mask=slices, other=0.0).to(tl.float32) if BIASED else scale
    value = tl.load(
        value_ptr + (head * M + m)[:, None] * E + e[None, :],
        mask=slices[:, None] & values[None, :],
        other=0.0,
    ).to(kind)
    d_weight = tl.zeros([BM, BD], tl.float32)
    d_value = tl.zeros([BM, BE], tl.float32)
    d_bias = tl.zeros([BN, BM], tl.float32)
    first, points = mesh_of(head, offset_ptr, N, H, PACKED)
    begin, _, end = run_of(part, points, BN)
    row = (first + begin) * H + head % H
    x_ptr += row * D
    d_x_ptr += row * D
    d_out_ptr += row * E
    level_ptr += row
    for start in range(0, end - begin, BN):  # all with masks: a loop without would take more registers
        n = start + tl.arange(0, BN)
        x = load_tile(x_ptr, n, end - begin, H, D, True, BD)
        d_out = load_tile(d_out_ptr, n, end - begin, H, E, True, BE).to(kind)
        scores = _scores(x, weight, bias, slices, M == BM, BIASED, PRODUCT)
        if kind == tl.float32:
            share, _top, total = _shares(scores, True)
            phi = share * (1 / total)[:, None]
        else:
            level = tl.load(level_ptr + n * H, mask=n < end - begin, other=float("inf"))
            phi = exp_above(scores, level[:, None])
        d_phi = multiply(d_out, tl.trans(value), 0.0, PRODUCT)
        d_scores = phi * (d_phi - tl.sum(phi * d_phi, axis=1)[:, None])
        if BIASED:
            d_bias += d_scores
        d_scores = d_scores.to(kind)
        d_x = multiply(d_scores, tl.trans(weight), 0.0, PRODUCT)
        store_tile(d_x_ptr, d_x, n, end - begin, H, D, True, BD)
        d_weight = multiply(tl.trans(d_scores), x, d_weight, PRODUCT)
        d_value = multiply(tl.trans(phi.to(kind)), d_out, d_value, PRODUCT)
    base = part_ptr + (head * tl.num_programs(0) + part) * (M * D + M + M * E)
    tl.store(base + m[:, None] * D + d[None, :], d_weight, mask=slices[:, None] & features[None, :])
    if BIASED:
        tl.store(base + M * D + m, tl.sum(d_bias, axis=0), mask=slices)
    else:
        tl.store(base + M * D + m, tl.zeros([BM], tl.float32), mask=slices)
    tl.store(base + M * D + M + m[:, None] * E + e[None, :], d_value, mask=slices[:, None] & values[None, :])


def scatter_forward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, keep: bool, meshes: Meshes
) -> tuple[Tensor, Tensor]:
    """φ value and, where it is kept, what spares the backward pass two sums over M: a number for each head of
    a point. float32 is better off with the sums, as that number's rounding would show."""
    keep = keep and x.dtype != torch.float32
    (heads, width), offsets = x.shape[2:], meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = runs_of("scatter", x, meshes, slices)
    out = x.new_empty(*x.shape[:-1], values)
    level = x.new_empty(x.shape[:-1] if keep else (0,), dtype=torch.float32)
    _scatter[(parts, meshes.number * heads)](
        x, weight, scale, weight if bias is None else bias, value, x if offsets is None else offsets, out,
        level, meshes.points, *weight.stride(), heads, slices, width, values, bias is not None, keep,
        offsets is not None, product_precision(x, "careful"),
        pad(slices), pad(width), pad(values), **tile, **early(x.device),
    )  # fmt: skip
    return out, level


def scatter_backward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, level: Tensor,
    d_out: Tensor, late: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, scale, bias (empty where there is none) and value."""
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = runs_of("scatter back", x, meshes, slices)
    d_x = torch.empty_like(x)
    sums = x.new_empty(batch * heads, parts, slices * (width + 1 + values), dtype=torch.float32)
    _scatter_back[(parts, batch * heads)](
        x, weight, scale, weight if bias is None else bias, value, level, d_out,
        x if offsets is None else offsets, d_x, sums, meshes.points,
        *weight.stride(), heads, slices, width, values, bias is not None, offsets is not None,
        product_precision(x, "careful"), pad(slices), pad(width), pad(values), **tile, **early(x.device),
    )  # fmt: skip
    d_value = torch.empty_like(value)
    d_weight, d_scale, d_bias, _ = small_gradients(
        sums, sums.new_empty(0), weight, scale, bias, None, batch, d_value, late
    )
    return d_x, d_weight, d_scale, d_bias, d_value
