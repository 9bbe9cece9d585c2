"""Layer norm fused with the residual sum before it and the cast after it. Axes: R rows, C channels.

The backward pass reads the sum and the moments stored by the forward pass, adds the gradient of the residual
stream, and writes partial sums of the gradients of gain and shift. It ignores the low bits of a bf16 stream,
which are small compared with the rounding of gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import ParameterUses, run_on_side_stream
from linearno.ops.triton.common import (
    dependent_launch,
    power_of_two,
    processor_count,
    wait_for_previous_kernel,
)

PREFETCH_STAGES = 3  # pipelined tiles of a loop over rows


@triton.jit
def standardise(h, inside, eps, C: tl.constexpr):
    """Standardised rows (h − mean) · scale, their mean, and scale = 1 / √(variance + eps)."""
    mean = tl.sum(tl.where(inside, h, 0.0), axis=1) / C
    centred = tl.where(inside, h - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / C + eps)
    return centred * scale[:, None], mean, scale


@triton.jit
def standardise_back(d_unit, unit, scale, C: tl.constexpr):
    """scale · (d_unit − mean(d_unit) − unit · mean(d_unit · unit))."""
    mean_gradient, mean_product = tl.sum(d_unit, axis=1) / C, tl.sum(d_unit * unit, axis=1) / C
    return scale[:, None] * (d_unit - mean_gradient[:, None] - unit * mean_product[:, None])


@triton.jit
def split_bf16(h):
    """Split float32 into bf16 and eight further bits, with bits(h) ≈ (bits(high) << 16) + (low << 8)."""
    bits = h.to(tl.int32, bitcast=True)
    high = tl.where(h == h, (bits + 0x8000) >> 16, 0x7FC0)  # rounding must not overflow a NaN
    low = tl.minimum((bits - (high << 16) + 0x80) >> 8, 127)
    return high.to(tl.int16).to(tl.bfloat16, bitcast=True), low.to(tl.int8)


@triton.jit
def join_bf16(h, low_bits):
    """Inverse of `split_bf16`."""
    high = h.to(tl.int16, bitcast=True).to(tl.int32) << 16
    return (high + (low_bits.to(tl.int32) << 8)).to(tl.float32, bitcast=True)


@triton.jit
def _norm(
    h_ptr, low_bits_ptr, addend_ptr, offset_ptr, gain_ptr, shift_ptr, weight_ptr, bias_ptr,
    sum_ptr, new_low_bits_ptr, out_ptr, moment_ptr, R, eps,
    C: tl.constexpr, HAS_LOW_BITS: tl.constexpr, HAS_ADDEND: tl.constexpr, HAS_OFFSET: tl.constexpr,
    WRITE_SUM: tl.constexpr, SPLIT: tl.constexpr, HEAD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """sum = h + low_bits + addend + offset and out = LayerNorm(sum).

    With HEAD out = ⟨LayerNorm(sum), weight⟩ + bias. `moment` (R, 2) receives the mean and 1 / deviation of
    each row.
    """
    wait_for_previous_kernel(DEPENDENT)
    r, c = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), tl.arange(0, BC)
    inside = (r < R)[:, None] & (c < C)[None, :]
    index = r[:, None] * C + c[None, :]
    byte_index = tl.max_contiguous(index, (1, 8))  # else the layout of the tile would suit the int8 loads
    h = tl.load(h_ptr + index, mask=inside, other=0.0)
    if HAS_LOW_BITS:
        h = join_bf16(h, tl.load(low_bits_ptr + byte_index, mask=inside, other=0))
    h = h.to(tl.float32)
    if HAS_ADDEND:
        h += tl.load(addend_ptr + index, mask=inside, other=0.0).to(tl.float32)
    if HAS_OFFSET:
        h += tl.load(offset_ptr + c, mask=c < C, other=0.0)[None, :]
    if SPLIT:
        high, low = split_bf16(h)
        tl.store(sum_ptr + index, high, mask=inside)
        tl.store(new_low_bits_ptr + byte_index, low, mask=inside)
    elif WRITE_SUM:
        tl.store(sum_ptr + index, h, mask=inside)
    unit, mean, scale = standardise(h, inside, eps, C)
    tl.store(moment_ptr + 2 * r, mean, mask=r < R)
    tl.store(moment_ptr + 2 * r + 1, scale, mask=r < R)
    gain = tl.load(gain_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(shift_ptr + c, mask=c < C, other=0.0)
    normed = unit * gain[None, :] + shift[None, :]
    if HEAD:
        weight = tl.load(weight_ptr + c, mask=c < C, other=0.0)
        tl.store(out_ptr + r, tl.sum(normed * weight[None, :], axis=1) + tl.load(bias_ptr), mask=r < R)
    else:
        tl.store(out_ptr + index, normed, mask=inside)


@triton.jit
def _norm_back(
    h_ptr, moment_ptr, gain_ptr, shift_ptr, weight_ptr, d_out_ptr, d_stream_ptr,
    d_h_ptr, d_addend_ptr, part_ptr, R,
    C: tl.constexpr, HAS_D_STREAM: tl.constexpr, HAS_D_ADDEND: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HEAD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, PREFETCH_STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """d_h = the gradient through the norm + d_stream, and partial sums of the gradients of gain, shift,
    offset and, with HEAD, weight and bias."""
    wait_for_previous_kernel(DEPENDENT)
    c = tl.arange(0, BC)
    gain = tl.load(gain_ptr + c, mask=c < C, other=0.0)
    d_gain = tl.zeros([BR, BC], tl.float32)
    d_shift = tl.zeros([BR, BC], tl.float32)
    d_offset = tl.zeros([BR, BC], tl.float32)
    if HEAD:
        shift = tl.load(shift_ptr + c, mask=c < C, other=0.0)
        weight = tl.load(weight_ptr + c, mask=c < C, other=0.0)
        d_weight = tl.zeros([BR, BC], tl.float32)
        d_bias = tl.zeros([BR], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=PREFETCH_STAGES):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        index = r[:, None] * C + c[None, :]
        h = tl.load(h_ptr + index, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(moment_ptr + 2 * r, mask=r < R, other=0.0)
        scale = tl.load(moment_ptr + 2 * r + 1, mask=r < R, other=0.0)
        unit = tl.where(inside, (h - mean[:, None]) * scale[:, None], 0.0)
        if HEAD:
            d_row = tl.load(d_out_ptr + r, mask=r < R, other=0.0)
            d_bias += d_row
            d_weight += d_row[:, None] * (unit * gain[None, :] + shift[None, :])
            d_out = d_row[:, None] * weight[None, :]
        else:
            d_out = tl.load(d_out_ptr + index, mask=inside, other=0.0).to(tl.float32)
        d_gain += d_out * unit
        d_shift += d_out
        d_h = standardise_back(d_out * gain[None, :], unit, scale, C)
        if HAS_D_STREAM:
            d_h += tl.load(d_stream_ptr + index, mask=inside, other=0.0).to(tl.float32)
        if HAS_OFFSET:
            d_offset += d_h
        tl.store(d_h_ptr + index, d_h, mask=inside)
        if HAS_D_ADDEND:
            tl.store(d_addend_ptr + index, d_h, mask=inside)
    vectors: tl.constexpr = 2 + (1 if HAS_OFFSET else 0) + (1 if HEAD else 0)
    part = part_ptr + tl.program_id(0) * (vectors * C + (1 if HEAD else 0))
    tl.store(part + c, tl.sum(d_gain, axis=0), mask=c < C)
    tl.store(part + C + c, tl.sum(d_shift, axis=0), mask=c < C)
    if HAS_OFFSET:
        tl.store(part + 2 * C + c, tl.sum(d_offset, axis=0), mask=c < C)
    if HEAD:
        tl.store(part + (vectors - 1) * C + c, tl.sum(d_weight, axis=0), mask=c < C)
        tl.store(part + vectors * C, tl.sum(d_bias, axis=0))


@triton.jit
def _column_partial_sums(
    x_ptr, part_ptr, R, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, PREFETCH_STAGES: tl.constexpr
):
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros([BR, BC], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=PREFETCH_STAGES):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        total += tl.load(x_ptr + r[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(part_ptr + tl.program_id(0) * C + c, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _sum_rows(part_ptr, out_ptr, parts, K: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr):
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    total = tl.zeros([BP, BK], tl.float32)
    for start in range(0, parts, BP):
        p = start + tl.arange(0, BP)
        total += tl.load(
            part_ptr + p[:, None] * K + k[None, :], mask=(p < parts)[:, None] & (k < K)[None, :], other=0.0
        )
    tl.store(out_ptr + k, tl.sum(total, axis=0), mask=k < K)


def sum_rows(parts: Tensor) -> Tensor:
    """Column sums (K,) of a small matrix (P, K), in a fixed order."""
    rows, columns = parts.shape
    out = parts.new_empty(columns)
    _sum_rows[(-(-columns // 8),)](parts, out, rows, columns, 256, 8, num_warps=4)
    return out


def column_sums(x: Tensor) -> Tensor:
    """Column sums (C,) in float32 of a tall matrix (R, C)."""
    rows, columns = x.shape
    block_columns = min(128, power_of_two(columns))
    programs = min(-(-rows // 32), 2 * processor_count(x.device))
    parts = x.new_empty(programs, columns, dtype=torch.float32)
    _column_partial_sums[(programs, -(-columns // block_columns))](
        x, parts, rows, columns, 32, block_columns, PREFETCH_STAGES, num_warps=4
    )
    return sum_rows(parts)


def norm_forward(
    h: Tensor, low_bits: Tensor | None, addend: Tensor | None, offset: Tensor | None, gain: Tensor,
    shift: Tensor, eps: float, dtype: torch.dtype, split: bool, head: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The sum h + low_bits + addend + offset, its low bits, its norm in `dtype`, and its moments (R, 2).

    With `split` the sum is stored as bf16 and low bits; otherwise in the dtype of h, as h itself if nothing
    is added. A `head` (weight, bias) replaces the norm by one output per row and stores no low bits.
    """
    rows, channels = h.shape
    write = addend is not None or (split and h.dtype != torch.bfloat16)
    total = torch.empty_like(h, dtype=torch.bfloat16 if split else h.dtype) if write else h
    new_low_bits = (
        (torch.empty_like(total, dtype=torch.int8) if write else low_bits) if split and not head else None
    )
    out = h.new_empty((rows, 1) if head else h.shape, dtype=dtype)
    weight, bias = head or (gain, shift)
    moments = h.new_empty(rows, 2, dtype=torch.float32)
    tile = _tile_rows(channels, 4096)
    _norm[(-(-rows // tile),)](
        h, h if low_bits is None else low_bits, h if addend is None else addend,
        gain if offset is None else offset, gain, shift, weight, bias, total,
        total if new_low_bits is None else new_low_bits, out, moments, rows, eps, channels,
        low_bits is not None, addend is not None, offset is not None, write,
        write and new_low_bits is not None, head is not None, tile, power_of_two(channels), num_warps=4,
        **dependent_launch(h.device),
    )  # fmt: skip
    return total, new_low_bits, out, moments


def norm_backward(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, d_stream: Tensor | None,
    dtypes: tuple[torch.dtype, torch.dtype | None], offset: bool = False, uses: ParameterUses = None,
    head: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of h and addend in `dtypes` (None: no addend), and of gain, shift, then of the offset if
    `offset`, then of weight and bias with a `head` (shift of the norm, weight of the head)."""
    rows, channels = h.shape
    d_h = torch.empty_like(h, dtype=dtypes[0])
    write_d_addend = dtypes[1] not in (None, dtypes[0])
    d_addend = torch.empty_like(h, dtype=dtypes[1]) if write_d_addend else d_h
    tile = _tile_rows(channels, 512)
    programs = min(-(-rows // tile), 8 * processor_count(h.device))
    sizes = [channels] * (3 if offset else 2) + ([channels, 1] if head else [])
    parts = h.new_empty(programs, sum(sizes), dtype=torch.float32)
    shift, weight = head or (gain, gain)
    _norm_back[(programs,)](
        h, moments, gain, shift, weight, d_out, d_out if d_stream is None else d_stream, d_h, d_addend, parts,
        rows, channels, d_stream is not None, write_d_addend, offset, head is not None,
        tile, power_of_two(channels), PREFETCH_STAGES, num_warps=1, **dependent_launch(h.device),
    )  # fmt: skip
    (sums,) = run_on_side_stream(lambda: (sum_rows(parts),), parts, uses=uses)
    return d_h, None if dtypes[1] is None else d_addend, sums.split(sizes)


def _tile_rows(channels: int, elements: int) -> int:
    """Number of rows of a tile of `elements`."""
    return max(1, elements // power_of_two(channels))
