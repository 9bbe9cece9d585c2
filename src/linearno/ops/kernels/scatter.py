"""Scatter in Triton, forward and backward: made as `gather` is, with its axes and its sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.kernels.launch import early, exp, follow, multiply, pad, product_precision
from linearno.ops.kernels.sums import Meshes, mesh_of, run_of, runs_of, small_gradients


@triton.jit
def _phi(x, weight, bias, slices, FULL: tl.constexpr, BIASED: tl.constexpr, PRODUCT: tl.constexpr):
    """exp(score − maximum) of a tile (n, M), and 1 / its sum over M."""
    scores = multiply(x, weight, 0.0, PRODUCT)
    if BIASED:
        scores += bias[None, :]
    if not FULL:
        scores = tl.where(slices[None, :], scores, float("-inf"))
    share = exp(scores - tl.max(scores, axis=1)[:, None], x.dtype == tl.float32)
    return share, 1 / tl.sum(share, axis=1)


@triton.jit
def _scatter(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, offset_ptr, out_ptr,
    N, WD, WM,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BIASED: tl.constexpr, PACKED: tl.constexpr, PRODUCT: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
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
    begin, end = run_of(part, points, BN)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        there = n < points
        row = (first + n) * H + head % H
        x = tl.load(x_ptr + row[:, None] * D + d[None, :], mask=there[:, None] & features[None, :], other=0.0)
        share, norm = _phi(x, weight, bias, slices, M == BM, BIASED, PRODUCT)
        out = multiply(share.to(kind), value, 0.0, PRODUCT) * norm[:, None]
        tl.store(out_ptr + row[:, None] * E + e[None, :], out, mask=there[:, None] & values[None, :])


@triton.jit
def _scatter_back(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, value_ptr, d_out_ptr, offset_ptr, d_x_ptr, part_ptr,
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
    begin, end = run_of(part, points, BN)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        there = n < points
        row = (first + n) * H + head % H
        of_x = row[:, None] * D + d[None, :]
        x = tl.load(x_ptr + of_x, mask=there[:, None] & features[None, :], other=0.0)
        d_out = tl.load(
            d_out_ptr + row[:, None] * E + e[None, :], mask=there[:, None] & values[None, :], other=0.0
        ).to(kind)
        share, norm = _phi(x, weight, bias, slices, M == BM, BIASED, PRODUCT)
        phi = share * norm[:, None]
        d_phi = multiply(d_out, tl.trans(value), 0.0, PRODUCT)
        d_scores = phi * (d_phi - tl.sum(phi * d_phi, axis=1)[:, None])
        if BIASED:
            d_bias += d_scores
        d_scores = d_scores.to(kind)
        d_x = multiply(d_scores, tl.trans(weight), 0.0, PRODUCT)
        tl.store(d_x_ptr + of_x, d_x, mask=there[:, None] & features[None, :])
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
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, meshes: Meshes
) -> Tensor:
    (heads, width), offsets = x.shape[2:], meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = runs_of("scatter", x, meshes, slices)
    out = x.new_empty(*x.shape[:-1], values)
    _scatter[(parts, meshes.number * heads)](
        x, weight, scale, weight if bias is None else bias, value, x if offsets is None else offsets, out,
        meshes.points, *weight.stride(), heads, slices, width, values, bias is not None,
        offsets is not None, product_precision(x, "careful"),
        pad(slices), pad(width), pad(values), **tile, **early(x.device),
    )  # fmt: skip
    return out


def scatter_backward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, value: Tensor, d_out: Tensor,
    late: bool, meshes: Meshes,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, scale, bias (empty where there is none) and value."""
    (heads, width), batch, offsets = x.shape[2:], meshes.number, meshes.offsets
    slices, values = value.shape[-2:]
    parts, tile = runs_of("scatter back", x, meshes, slices)
    d_x = torch.empty_like(x)
    sums = x.new_empty(batch * heads, parts, slices * (width + 1 + values), dtype=torch.float32)
    _scatter_back[(parts, batch * heads)](
        x, weight, scale, weight if bias is None else bias, value, d_out, x if offsets is None else offsets,
        d_x, sums, meshes.points,
        *weight.stride(), heads, slices, width, values, bias is not None, offsets is not None,
        product_precision(x, "careful"), pad(slices), pad(width), pad(values), **tile, **early(x.device),
    )  # fmt: skip
    d_value = torch.empty_like(value)
    d_weight, d_scale, d_bias, _ = small_gradients(
        sums, sums.new_empty(0), weight, scale, bias, None, batch, d_value, late
    )
    return d_x, d_weight, d_scale, d_bias, d_value
