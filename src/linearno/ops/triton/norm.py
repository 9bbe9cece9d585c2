"""Layer norm with what stands around it: the residual sum before, the cast after. Axes: R rows, C channels.

The backward pass reads the features again, with the mean and deviation that the forward pass has kept, adds
the gradient that comes along the residual stream, and leaves the gradients of gain and shift as partial sums
of each program. What rounding the stream to bf16 left it does not read: beside the gradients' own rounding it
is small.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import Leaves, beside
from linearno.ops.triton.common import early, follow, power_of_two, processors

AHEAD = 3  # tiles that a loop over rows has under way


@triton.jit
def standardise(h, inside, eps, C: tl.constexpr):
    """Rows of mean zero and variance one, their mean before, and what they were multiplied by."""
    mean = tl.sum(tl.where(inside, h, 0.0), axis=1) / C
    centred = tl.where(inside, h - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / C + eps)
    return centred * scale[:, None], mean, scale


@triton.jit
def standardise_back(d_unit, unit, scale, C: tl.constexpr):
    level, tilt = tl.sum(d_unit, axis=1) / C, tl.sum(d_unit * unit, axis=1) / C
    return scale[:, None] * (d_unit - level[:, None] - unit * tilt[:, None])


@triton.jit
def split(h):
    """float32 as bf16 and the eight bits of mantissa after it, rounded. As integers floats are in order, so a
    float is the sum of the two."""
    bits = h.to(tl.int32, bitcast=True)
    upper = tl.where(h == h, (bits + 0x8000) >> 16, 0x7FC0)  # NaN must not be carried over the largest number
    lower = tl.minimum((bits - (upper << 16) + 0x80) >> 8, 127)
    return upper.to(tl.int16).to(tl.bfloat16, bitcast=True), lower.to(tl.int8)


@triton.jit
def joined(h, rest):
    """What was `split`."""
    upper = h.to(tl.int16, bitcast=True).to(tl.int32) << 16
    return (upper + (rest.to(tl.int32) << 8)).to(tl.float32, bitcast=True)


@triton.jit
def _norm(
    h_ptr, rest_ptr, more_ptr, offset_ptr, gain_ptr, shift_ptr, weight_ptr, bias_ptr,
    sum_ptr, left_ptr, out_ptr, moment_ptr, R, eps,
    C: tl.constexpr, REST: tl.constexpr, ADD: tl.constexpr, OFFSET: tl.constexpr, WRITE: tl.constexpr,
    SPLIT: tl.constexpr, HEAD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The norm to `out`; with HEAD one number of each row instead, ⟨norm, weight⟩ + bias.

    Mean and 1 / deviation of each row go to `moment`.
    """
    follow(EARLY)
    r, c = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), tl.arange(0, BC)
    inside = (r < R)[:, None] & (c < C)[None, :]
    place = r[:, None] * C + c[None, :]
    eighths = tl.max_contiguous(place, (1, 8))  # of bytes: else the compiler would lay the tile out for them
    h = tl.load(h_ptr + place, mask=inside, other=0.0)
    if REST:
        h = joined(h, tl.load(rest_ptr + eighths, mask=inside, other=0))
    h = h.to(tl.float32)
    if ADD:
        h += tl.load(more_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if OFFSET:
        h += tl.load(offset_ptr + c, mask=c < C, other=0.0)[None, :]
    if SPLIT:
        upper, lower = split(h)
        tl.store(sum_ptr + place, upper, mask=inside)
        tl.store(left_ptr + eighths, lower, mask=inside)
    elif WRITE:
        tl.store(sum_ptr + place, h, mask=inside)
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
        tl.store(out_ptr + place, normed, mask=inside)


@triton.jit
def _norm_back(
    h_ptr, moment_ptr, gain_ptr, shift_ptr, weight_ptr, d_out_ptr, along_ptr,
    d_h_ptr, d_more_ptr, part_ptr, R,
    C: tl.constexpr, ALONG: tl.constexpr, TWICE: tl.constexpr, OFFSET: tl.constexpr, HEAD: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
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
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=AHEAD):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        place = r[:, None] * C + c[None, :]
        h = tl.load(h_ptr + place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(moment_ptr + 2 * r, mask=r < R, other=0.0)
        scale = tl.load(moment_ptr + 2 * r + 1, mask=r < R, other=0.0)
        unit = tl.where(inside, (h - mean[:, None]) * scale[:, None], 0.0)
        if HEAD:
            d_row = tl.load(d_out_ptr + r, mask=r < R, other=0.0)
            d_bias += d_row
            d_weight += d_row[:, None] * (unit * gain[None, :] + shift[None, :])
            d_out = d_row[:, None] * weight[None, :]
        else:
            d_out = tl.load(d_out_ptr + place, mask=inside, other=0.0).to(tl.float32)
        d_gain += d_out * unit
        d_shift += d_out
        d_h = standardise_back(d_out * gain[None, :], unit, scale, C)
        if ALONG:
            d_h += tl.load(along_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            d_offset += d_h
        tl.store(d_h_ptr + place, d_h, mask=inside)
        if TWICE:
            tl.store(d_more_ptr + place, d_h, mask=inside)
    vectors: tl.constexpr = 2 + (1 if OFFSET else 0) + (1 if HEAD else 0)
    part = part_ptr + tl.program_id(0) * (vectors * C + (1 if HEAD else 0))
    tl.store(part + c, tl.sum(d_gain, axis=0), mask=c < C)
    tl.store(part + C + c, tl.sum(d_shift, axis=0), mask=c < C)
    if OFFSET:
        tl.store(part + 2 * C + c, tl.sum(d_offset, axis=0), mask=c < C)
    if HEAD:
        tl.store(part + (vectors - 1) * C + c, tl.sum(d_weight, axis=0), mask=c < C)
        tl.store(part + vectors * C, tl.sum(d_bias, axis=0))


@triton.jit
def _column_parts(
    x_ptr, part_ptr, R, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, AHEAD: tl.constexpr
):
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros([BR, BC], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=AHEAD):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        total += tl.load(x_ptr + r[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(part_ptr + tl.program_id(0) * C + c, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _add_rows(part_ptr, out_ptr, parts, K: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr):
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    total = tl.zeros([BP, BK], tl.float32)
    for start in range(0, parts, BP):
        p = start + tl.arange(0, BP)
        total += tl.load(
            part_ptr + p[:, None] * K + k[None, :], mask=(p < parts)[:, None] & (k < K)[None, :], other=0.0
        )
    tl.store(out_ptr + k, tl.sum(total, axis=0), mask=k < K)


def add_rows(parts: Tensor) -> Tensor:
    """Column sums (K,) of a small (P, K), in a fixed order."""
    rows, columns = parts.shape
    out = parts.new_empty(columns)
    _add_rows[(-(-columns // 8),)](parts, out, rows, columns, 256, 8, num_warps=4)
    return out


def column_sums(x: Tensor) -> Tensor:
    """Column sums (C,) in float32 of a long (R, C)."""
    rows, columns = x.shape
    wide = min(128, power_of_two(columns))
    programs = min(-(-rows // 32), 2 * processors(x.device))
    parts = x.new_empty(programs, columns, dtype=torch.float32)
    _column_parts[(programs, -(-columns // wide))](x, parts, rows, columns, 32, wide, AHEAD, num_warps=4)
    return add_rows(parts)


def norm_forward(
    h: Tensor, rest: Tensor | None, more: Tensor | None, offset: Tensor | None, gain: Tensor, shift: Tensor,
    eps: float, kind: torch.dtype, split: bool, head: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """(h + rest + more + offset, what rounding it left, its norm in the type `kind`, its moments).

    With `split` the sum is rounded to bf16, and what that left is kept. Else it has the type of h, and is h
    itself where nothing is added. A `head` (weight, bias) makes one number of each row's norm; nothing comes
    after it, so nothing is left.
    """
    rows, channels = h.shape
    write = more is not None or (split and h.dtype != torch.bfloat16)
    total = torch.empty_like(h, dtype=torch.bfloat16 if split else h.dtype) if write else h
    left = (torch.empty_like(total, dtype=torch.int8) if write else rest) if split and not head else None
    out = h.new_empty((rows, 1) if head else h.shape, dtype=kind)
    weight, bias = head or (gain, shift)
    moments = h.new_empty(rows, 2, dtype=torch.float32)
    tile = _rows(channels, 4096)
    _norm[(-(-rows // tile),)](
        h, h if rest is None else rest, h if more is None else more, gain if offset is None else offset,
        gain, shift, weight, bias, total, total if left is None else left, out, moments, rows, eps,
        channels, rest is not None, more is not None, offset is not None, write, write and left is not None,
        head is not None, tile, power_of_two(channels), num_warps=4, **early(h.device),
    )  # fmt: skip
    return total, left, out, moments


def norm_backward(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, along: Tensor | None,
    kinds: tuple[torch.dtype, torch.dtype | None], offset: bool = False, leaves: Leaves = None,
    head: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of h and of what was added to it, in their types `kinds` (None: nothing), and those of gain
    and shift; where an `offset` was added also that one's, and with a `head` (the norm's shift,
    the weight) those of the head's weight and bias."""
    rows, channels = h.shape
    d_h = torch.empty_like(h, dtype=kinds[0])
    twice = kinds[1] not in (None, kinds[0])
    d_more = torch.empty_like(h, dtype=kinds[1]) if twice else d_h
    tile = _rows(channels, 512)
    programs = min(-(-rows // tile), 8 * processors(h.device))
    sizes = [channels] * (3 if offset else 2) + ([channels, 1] if head else [])
    parts = h.new_empty(programs, sum(sizes), dtype=torch.float32)
    shift, weight = head or (gain, gain)
    _norm_back[(programs,)](
        h, moments, gain, shift, weight, d_out, d_out if along is None else along, d_h, d_more, parts, rows,
        channels, along is not None, twice, offset, head is not None,
        tile, power_of_two(channels), AHEAD, num_warps=1, **early(h.device),
    )  # fmt: skip
    (sums,) = beside(lambda: (add_rows(parts),), parts, leaves=leaves)
    return d_h, None if kinds[1] is None else d_more, sums.split(sizes)


def _rows(channels: int, numbers: int) -> int:
    """Rows of a tile of so many numbers."""
    return max(1, numbers // power_of_two(channels))
