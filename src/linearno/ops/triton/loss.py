"""The relative L2 error of a field, and on a 2-D grid that of its slopes, in one pass each way.

Axes: B samples, rows × columns of a grid, C channels. Slopes are central differences without their factor
1/2h, which a relative norm cancels; the prediction counts with its border ring set to zero, as published.
Per sample six sums of squares are kept: error and truth, of the field and of its two slopes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import power_of_two

BLOCK = 1024


@triton.jit
def _inner(p_ptr, row, column, rows, columns, there):
    """The prediction inside the border ring, zero on it and beyond."""
    inside = there & (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
    return tl.load(p_ptr, mask=inside, other=0.0)


@triton.jit
def _field(y_ptr, row, column, rows, columns, there):
    inside = there & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return tl.load(y_ptr, mask=inside, other=0.0)


@triton.jit
def _slopes(p_ptr, y_ptr, row, column, rows, columns, step, there, DOWN: tl.constexpr):
    """(slope of the prediction − that of the truth, slope of the truth) at points of the grid."""
    if DOWN:
        p = _inner(p_ptr + step, row + 1, column, rows, columns, there)
        p -= _inner(p_ptr - step, row - 1, column, rows, columns, there)
        y = _field(y_ptr + step, row + 1, column, rows, columns, there)
        y -= _field(y_ptr - step, row - 1, column, rows, columns, there)
    else:
        p = _inner(p_ptr + step, row, column + 1, rows, columns, there)
        p -= _inner(p_ptr - step, row, column - 1, rows, columns, there)
        y = _field(y_ptr + step, row, column + 1, rows, columns, there)
        y -= _field(y_ptr - step, row, column - 1, rows, columns, there)
    return p - y, y


@triton.jit
def _sums(
    p_ptr, y_ptr, part_ptr, size, rows, columns, channels,
    SLOPES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block, sample = tl.program_id(0), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    there = i < size
    p_ptr += sample.to(tl.int64) * size + i
    y_ptr += sample.to(tl.int64) * size + i
    part = part_ptr + (sample * tl.num_programs(0) + block) * 6
    y = tl.load(y_ptr, mask=there, other=0.0)
    error = tl.load(p_ptr, mask=there, other=0.0) - y
    tl.store(part, tl.sum(error * error, axis=0))
    tl.store(part + 1, tl.sum(y * y, axis=0))
    if SLOPES:
        row, column = i // (columns * channels), i // channels % columns
        error, y = _slopes(p_ptr, y_ptr, row, column, rows, columns, channels, there, False)
        inside = there & (i >= 0)
        tl.store(part + 2, tl.sum(tl.where(inside, error * error, 0.0), axis=0))
        tl.store(part + 3, tl.sum(tl.where(inside, y * y, 0.0), axis=0))
        error, y = _slopes(p_ptr, y_ptr, row, column, rows, columns, columns * channels, there, True)
        tl.store(part + 4, tl.sum(tl.where(inside, error * error, 0.0), axis=0))
        tl.store(part + 5, tl.sum(tl.where(inside, y * y, 0.0), axis=0))


@triton.jit
def _errors(part_ptr, out_ptr, factor_ptr, blocks, weight, SLOPES: tl.constexpr, BB: tl.constexpr):
    """A sample's error, and the factors by which its gradient multiplies the three differences."""
    sample, b = tl.program_id(0), tl.arange(0, BB)
    part = part_ptr + (sample * blocks + b) * 6
    total = 0.0
    for kind in tl.static_range(3 if SLOPES else 1):
        square = tl.sum(tl.load(part + 2 * kind, mask=b < blocks, other=0.0), axis=0)
        scale = tl.sum(tl.load(part + 2 * kind + 1, mask=b < blocks, other=0.0), axis=0)
        share = 1.0 if kind == 0 else weight
        total += share * tl.sqrt(square / scale)
        factor = tl.where(square > 0, share / (tl.sqrt(square) * tl.sqrt(scale)), 0.0)
        tl.store(factor_ptr + sample * 3 + kind, factor)
    tl.store(out_ptr + sample, total)


@triton.jit
def _back(
    p_ptr, y_ptr, factor_ptr, d_out_ptr, d_p_ptr, size, rows, columns, channels,
    SLOPES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A difference's gradient is its transpose: what a point gave to its two neighbours comes back."""
    sample = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < size
    p_ptr += sample.to(tl.int64) * size + i
    y_ptr += sample.to(tl.int64) * size + i
    factor = factor_ptr + sample * 3
    error = tl.load(p_ptr, mask=there, other=0.0) - tl.load(y_ptr, mask=there, other=0.0)
    d_p = tl.load(factor) * error
    if SLOPES:
        row, column = i // (columns * channels), i // channels % columns
        inside = there & (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
        step = channels
        before, _ = _slopes(p_ptr - step, y_ptr - step, row, column - 1, rows, columns, step, inside, False)
        after, _ = _slopes(p_ptr + step, y_ptr + step, row, column + 1, rows, columns, step, inside, False)
        d_p += tl.where(inside, tl.load(factor + 1) * (before - after), 0.0)
        step = columns * channels
        before, _ = _slopes(p_ptr - step, y_ptr - step, row - 1, column, rows, columns, step, inside, True)
        after, _ = _slopes(p_ptr + step, y_ptr + step, row + 1, column, rows, columns, step, inside, True)
        d_p += tl.where(inside, tl.load(factor + 2) * (before - after), 0.0)
    tl.store(d_p_ptr + sample.to(tl.int64) * size + i, d_p * tl.load(d_out_ptr + sample), mask=there)


def loss_forward(p: Tensor, y: Tensor, grid: tuple[int, int] | None, weight: float) -> tuple[Tensor, Tensor]:
    """(errors (B,), factors (B, 3)) of fields (B, N, C)."""
    assert p.shape == y.shape  # the kernel reads both by one size
    samples, size = len(p), p[0].numel()
    rows, columns = grid or (1, 1)
    blocks = -(-size // BLOCK)
    parts = p.new_empty(samples, blocks, 6)
    errors, factors = p.new_empty(samples), p.new_empty(samples, 3)
    _sums[(blocks, samples)](
        p, y, parts, size, rows, columns, p.shape[-1], grid is not None, BLOCK, num_warps=4
    )
    _errors[(samples,)](
        parts, errors, factors, blocks, weight, grid is not None, power_of_two(blocks), num_warps=1
    )
    return errors, factors


def loss_backward(
    p: Tensor, y: Tensor, factors: Tensor, d_errors: Tensor, grid: tuple[int, int] | None
) -> Tensor:
    samples, size = len(p), p[0].numel()
    rows, columns = grid or (1, 1)
    d_p = torch.empty_like(p)
    _back[(-(-size // BLOCK), samples)](
        p, y, factors, d_errors, d_p, size, rows, columns, p.shape[-1], grid is not None, BLOCK, num_warps=4
    )
    return d_p
