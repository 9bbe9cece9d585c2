"""Tiles of gather and scatter kernels, and the reduction of their partial gradients."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import run_on_side_stream
from linearno.ops.triton.common import (
    dependent_launch,
    load_masked,
    pad,
    processor_count,
    product_precision,
    store_masked,
    wait_for_previous_kernel,
)

# (points of a tile, warps, programs per multiprocessor), tuned on an H200 for bf16 and slices × head width up
# to MAX_TUNED_SIZE. All programs of a launch are resident at once.
TUNED_TILES = {
    "gather": (64, 4, 4),
    "gather of few slices": (64, 2, 8),
    "gather back": (64, 2, 4),
    "scatter": (64, 4, 6),
    "scatter of few slices": (64, 2, 4),
    "scatter back": (32, 2, 6),
    "scatter back of few slices": (32, 1, 8),
}
MAX_TUNED_SIZE, FEW_SLICES = 1024, 32
MIN_TILE_POINTS = 32  # limit of halving tiles that are too few to fill the device


class Meshes(NamedTuple):
    """Layout of the points of a batch.

    Args:
        number: number of meshes.
        points: points of each mesh; of the largest if meshes are packed.
        offsets: S + 1 offsets of packed meshes on the device; None: not packed.
    """

    number: int
    points: int
    offsets: Tensor | None

    @classmethod
    def of(cls, x: Tensor, offsets: Tensor | None, max_points: int) -> "Meshes":
        if offsets is None:
            return cls(x.shape[0], x.shape[1], None)
        return cls(len(offsets) - 1, max_points, offsets)


def partition_points(
    kernel: str, x: Tensor, meshes: Meshes, slices: int, *, normalised: bool = False
) -> tuple[int, dict[str, int]]:
    """The number of parts into which the points of a head are split, and launch options of their tiles.

    `normalised`: ψ includes a softmax over slices. The largest of packed meshes decides; others have shorter
    or empty parts.
    """
    padded, per_processor, processors = pad(slices), 4, processor_count(x.device)
    batch, points, heads, _ = x.shape
    mesh_count = -(-batch * points // meshes.points)  # meshes of the largest size that hold all points
    if x.dtype == torch.bfloat16 and padded * pad(x.shape[-1]) <= MAX_TUNED_SIZE and not normalised:
        variant = f"{kernel} of few slices"
        few_slices = padded <= FEW_SLICES and variant in TUNED_TILES
        tile, warps, per_processor = TUNED_TILES[variant if few_slices else kernel]
    else:
        tile = (64 if kernel.endswith("back") else 128) if padded <= 64 else 64 if padded <= 128 else 32
        if x.dtype == torch.float32:
            tile = max(16, tile // (4 if product_precision(x) == "ieee" else 2))
        while tile > MIN_TILE_POINTS and mesh_count * heads * -(-meshes.points // tile) < processors:
            tile //= 2
        warps = 8 if padded > 128 else 4
    resident = per_processor * processors // max(1, mesh_count * heads)
    return max(1, min(-(-meshes.points // tile), resident)), {"BN": tile, "num_warps": warps, "num_stages": 3}


@triton.jit
def mesh_bounds(head, offset_ptr, N, H: tl.constexpr, PACKED: tl.constexpr):
    """First point of the mesh of a head, and its number of points."""
    mesh = head // H
    if PACKED:
        mesh_begin = tl.load(offset_ptr + mesh)
        points = (tl.load(offset_ptr + mesh + 1) - mesh_begin).to(tl.int32)
    else:
        mesh_begin = mesh.to(tl.int64) * N
        points = N
    return mesh_begin, points


@triton.jit
def part_bounds(part, N, BN: tl.constexpr):
    """Begin of a part, end of its full tiles, and end; parts differ by at most one tile."""
    tiles, parts, index = tl.cdiv(N, BN), tl.num_programs(0), part.to(tl.int64)
    begin, end = index * tiles // parts, (index + 1) * tiles // parts
    begin, end = begin.to(tl.int32) * BN, tl.minimum(end.to(tl.int32) * BN, N)
    return begin, end // BN * BN, end


@triton.jit
def load_tile(ptr, n, end, H: tl.constexpr, D: tl.constexpr, LAST: tl.constexpr, BD: tl.constexpr):
    """Load features (n, D) of a head at points n of a part at `ptr`; zero from `end` on, which only LAST
    tiles reach. Offsets are 32-bit: parts are short enough."""
    d = tl.arange(0, BD)
    return load_masked(ptr + n[:, None] * (H * D) + d[None, :], n, d, end, LAST, D, BD)


@triton.jit
def store_tile(ptr, tile, n, end, H: tl.constexpr, D: tl.constexpr, LAST: tl.constexpr, BD: tl.constexpr):
    d = tl.arange(0, BD)
    store_masked(ptr + n[:, None] * (H * D) + d[None, :], tile, n, d, end, LAST, D, BD)


@triton.jit
def _sum_parts(
    part_ptr, d_value_ptr, sum_ptr, parts,
    K: tl.constexpr, S: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sum the parts (K,) of a head: the first S sums go to `sum_ptr`, the others to `d_value_ptr`."""
    wait_for_previous_kernel(DEPENDENT)
    head, p = tl.program_id(0), tl.arange(0, BP)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    totals = tl.zeros([BP, BK], tl.float32)
    for start in range(0, parts, BP):
        row = head * parts + start + p
        valid = (start + p < parts)[:, None] & (k < K)[None, :]
        totals += tl.load(part_ptr + row[:, None] * K + k[None, :], mask=valid, other=0.0)
    total = tl.sum(totals, axis=0)
    tl.store(sum_ptr + head * S + k, total, mask=k < S)
    tl.store(d_value_ptr + head * (K - S) + k - S, total, mask=(k >= S) & (k < K))


@triton.jit
def _weight_back(
    sum_ptr, d_project_part_ptr, weight_ptr, scale_ptr, bias_ptr,
    d_weight_ptr, d_scale_ptr, d_bias_ptr, d_project_ptr, batch, WD, WM, GD, GM, PE, PF,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, PROJECT_SIZE: tl.constexpr, F: tl.constexpr,
    HAS_BIAS: tl.constexpr, WEIGHT_BLOCKS: tl.constexpr, PROJECT_BLOCKS: tl.constexpr,
    BH: tl.constexpr, BS: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Gradients of weight, bias, scale and project from Σ_n x ∂score and Σ_n ∂score of each head.

    Programs 0 … WEIGHT_BLOCKS−1 compute weight and bias, the next PROJECT_BLOCKS project, the last H one
    scale each: ∂scale = ⟨w, Σ x ∂score⟩ + ⟨bias, Σ ∂score⟩. Weights and gradients may have different strides.
    """
    program = tl.program_id(0)
    S: tl.constexpr = M * D + M
    if program < WEIGHT_BLOCKS + PROJECT_BLOCKS:
        h = tl.arange(0, BH)
        k = (program if program < WEIGHT_BLOCKS else program - WEIGHT_BLOCKS) * BS + tl.arange(0, BS)
        totals = tl.zeros([BH, BS], tl.float32)
        for start in range(0, batch * H, BH):
            head = start + h
            heads = head < batch * H
            if program < WEIGHT_BLOCKS:
                inside = heads[:, None] & (k < S)[None, :]
                scale = tl.load(scale_ptr + head % H, mask=heads, other=0.0).to(tl.float32)
                totals += scale[:, None] * tl.load(
                    sum_ptr + head[:, None] * S + k[None, :], mask=inside, other=0.0
                )
            else:
                inside = heads[:, None] & (k < PROJECT_SIZE)[None, :]
                totals += tl.load(
                    d_project_part_ptr + head[:, None] * PROJECT_SIZE + k[None, :], mask=inside, other=0.0
                )
        total = tl.sum(totals, axis=0)
        if program < WEIGHT_BLOCKS:
            tl.store(d_weight_ptr + (k % D) * GD + (k // D) * GM, total, mask=k < M * D)
            if HAS_BIAS:
                tl.store(d_bias_ptr + k - M * D, total, mask=(k >= M * D) & (k < S))
        else:
            tl.store(d_project_ptr + (k // F) * PE + (k % F) * PF, total, mask=k < PROJECT_SIZE)
    else:
        scale_head = program - WEIGHT_BLOCKS - PROJECT_BLOCKS
        products = tl.zeros([BW], tl.float32)
        for start in range(0, S, BW):
            i = start + tl.arange(0, BW)
            weight = tl.load(weight_ptr + (i % D) * WD + (i // D) * WM, mask=i < M * D, other=0.0).to(
                tl.float32
            )
            if HAS_BIAS:
                weight += tl.load(bias_ptr + i - M * D, mask=(i >= M * D) & (i < S), other=0.0).to(tl.float32)
            for b in range(batch):
                products += weight * tl.load(sum_ptr + (b * H + scale_head) * S + i, mask=i < S, other=0.0)
        tl.store(d_scale_ptr + scale_head, tl.sum(products, axis=0))


def parameter_gradients(
    part_gradients: Tensor, d_project_parts: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None,
    project: Tensor | None, batch: int, d_value: Tensor | None, deferred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Reduce partial gradients in a fixed order; those of parameters on a side stream if `deferred`."""
    all_heads, parts, count = part_gradients.shape
    width, slices = weight.shape
    heads, parameter_count = all_heads // batch, slices * (width + 1)
    total = part_gradients.new_empty(all_heads, parameter_count)

    def sum_parts() -> None:
        _sum_parts[(all_heads, -(-count // 64))](
            part_gradients, total if d_value is None else d_value, total, parts, count, parameter_count, 32,
            64, num_warps=4, **dependent_launch(part_gradients.device),
        )  # fmt: skip

    def compute() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if d_value is None:
            sum_parts()
        d_weight, d_scale = torch.empty_like(weight), torch.empty_like(scale)
        d_bias = part_gradients.new_empty(0) if bias is None else torch.empty_like(bias)
        d_project = part_gradients.new_empty(0) if project is None else torch.empty_like(project)
        weight_blocks, project_blocks = -(-parameter_count // 64), -(-d_project.numel() // 64)
        _weight_back[(weight_blocks + project_blocks + heads,)](
            total, d_project_parts, weight, scale, weight if bias is None else bias, d_weight, d_scale,
            d_bias, d_project, batch, *weight.stride(), *d_weight.stride(),
            *(weight if project is None else d_project).stride(), heads, slices, width, d_project.numel(),
            max(1, d_project_parts.shape[-1]), bias is not None, weight_blocks, project_blocks, 32, 64, 1024,
            num_warps=4,
        )  # fmt: skip
        return d_weight, d_scale, d_bias, d_project

    if d_value is not None:
        sum_parts()
    uses = () if deferred else None
    d_weight, d_scale, d_bias, d_project = run_on_side_stream(
        compute, total, part_gradients, d_project_parts, scale, uses=uses
    )
    return d_weight, d_scale, d_bias, d_project
