"""Relative L2 error of a field and, on a 2-D grid, of its central differences.

Axes: B samples, rows × columns of a grid, C channels. A relative norm cancels the factor 1/2h of differences,
which is left out. As published, the prediction is set to zero on the border of the grid. Six sums of squares
per sample are stored: error and truth, of the field and of its two differences.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.triton.common import power_of_two

BLOCK = 1024


@triton.jit
def _load_interior(p_ptr, row, column, rows, columns, valid):
    """Load the prediction; zero on the border of the grid and outside."""
    inside = valid & (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
    return tl.load(p_ptr, mask=inside, other=0.0)


@triton.jit
def _load_field(y_ptr, row, column, rows, columns, valid):
    """Load the truth; zero outside of the grid."""
    inside = valid & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return tl.load(y_ptr, mask=inside, other=0.0)


@triton.jit
def _differences(p_ptr, y_ptr, row, column, rows, columns, stride, valid, ALONG_ROWS: tl.constexpr):
    """Difference of the prediction minus that of the truth, and difference of the truth."""
    if ALONG_ROWS:
        p = _load_interior(p_ptr + stride, row + 1, column, rows, columns, valid)
        p -= _load_interior(p_ptr - stride, row - 1, column, rows, columns, valid)
        y = _load_field(y_ptr + stride, row + 1, column, rows, columns, valid)
        y -= _load_field(y_ptr - stride, row - 1, column, rows, columns, valid)
    else:
        p = _load_interior(p_ptr + stride, row, column + 1, rows, columns, valid)
        p -= _load_interior(p_ptr - stride, row, column - 1, rows, columns, valid)
        y = _load_field(y_ptr + stride, row, column + 1, rows, columns, valid)
        y -= _load_field(y_ptr - stride, row, column - 1, rows, columns, valid)
    return p - y, y


@triton.jit
def _error_sums(
    p_ptr, y_ptr, part_ptr, size, rows, columns, channels,
    HAS_GRID: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of squares of a block: error and truth of the field and of its differences along both axes."""
    block, sample = tl.program_id(0), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    valid = i < size
    p_ptr += sample.to(tl.int64) * size + i
    y_ptr += sample.to(tl.int64) * size + i
    part = part_ptr + (sample * tl.num_programs(0) + block) * 6
    y = tl.load(y_ptr, mask=valid, other=0.0)
    error = tl.load(p_ptr, mask=valid, other=0.0) - y
    tl.store(part, tl.sum(error * error, axis=0))
    tl.store(part + 1, tl.sum(y * y, axis=0))
    if HAS_GRID:
        row, column = i // (columns * channels), i // channels % columns
        error, y = _differences(p_ptr, y_ptr, row, column, rows, columns, channels, valid, False)
        inside = valid & (i >= 0)
        tl.store(part + 2, tl.sum(tl.where(inside, error * error, 0.0), axis=0))
        tl.store(part + 3, tl.sum(tl.where(inside, y * y, 0.0), axis=0))
        error, y = _differences(p_ptr, y_ptr, row, column, rows, columns, columns * channels, valid, True)
        tl.store(part + 4, tl.sum(tl.where(inside, error * error, 0.0), axis=0))
        tl.store(part + 5, tl.sum(tl.where(inside, y * y, 0.0), axis=0))


@triton.jit
def _relative_errors(part_ptr, out_ptr, factor_ptr, blocks, weight, HAS_GRID: tl.constexpr, BB: tl.constexpr):
    """Σ_k weight_k ‖error_k‖ / ‖truth_k‖ of a sample; `factor` is weight_k / (‖error_k‖ ‖truth_k‖)."""
    sample, b = tl.program_id(0), tl.arange(0, BB)
    part = part_ptr + (sample * blocks + b) * 6
    total = 0.0
    for term in tl.static_range(3 if HAS_GRID else 1):
        square = tl.sum(tl.load(part + 2 * term, mask=b < blocks, other=0.0), axis=0)
        scale = tl.sum(tl.load(part + 2 * term + 1, mask=b < blocks, other=0.0), axis=0)
        term_weight = 1.0 if term == 0 else weight
        total += term_weight * tl.sqrt(square / scale)
        factor = tl.where(square > 0, term_weight / (tl.sqrt(square) * tl.sqrt(scale)), 0.0)
        tl.store(factor_ptr + sample * 3 + term, factor)
    tl.store(out_ptr + sample, total)


@triton.jit
def _loss_back(
    p_ptr, y_ptr, factor_ptr, d_out_ptr, d_p_ptr, size, rows, columns, channels,
    HAS_GRID: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of the prediction: Σ_k factor_k Dₖᵀ error_k, with Dₖ the identity or a central difference."""
    sample = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < size
    p_ptr += sample.to(tl.int64) * size + i
    y_ptr += sample.to(tl.int64) * size + i
    factor = factor_ptr + sample * 3
    error = tl.load(p_ptr, mask=valid, other=0.0) - tl.load(y_ptr, mask=valid, other=0.0)
    d_p = tl.load(factor) * error
    if HAS_GRID:
        row, column = i // (columns * channels), i // channels % columns
        inside = valid & (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
        stride = channels
        before, _ = _differences(
            p_ptr - stride, y_ptr - stride, row, column - 1, rows, columns, stride, inside, False
        )
        after, _ = _differences(
            p_ptr + stride, y_ptr + stride, row, column + 1, rows, columns, stride, inside, False
        )
        d_p += tl.where(inside, tl.load(factor + 1) * (before - after), 0.0)
        stride = columns * channels
        before, _ = _differences(
            p_ptr - stride, y_ptr - stride, row - 1, column, rows, columns, stride, inside, True
        )
        after, _ = _differences(
            p_ptr + stride, y_ptr + stride, row + 1, column, rows, columns, stride, inside, True
        )
        d_p += tl.where(inside, tl.load(factor + 2) * (before - after), 0.0)
    tl.store(d_p_ptr + sample.to(tl.int64) * size + i, d_p * tl.load(d_out_ptr + sample), mask=valid)


def loss_forward(p: Tensor, y: Tensor, grid: tuple[int, int] | None, weight: float) -> tuple[Tensor, Tensor]:
    """Errors (B,) and factors of the backward pass (B, 3), from prediction p and truth y (B, N, C)."""
    assert p.shape == y.shape  # the kernel uses one size for both
    samples, size = len(p), p[0].numel()
    rows, columns = grid or (1, 1)
    blocks = -(-size // BLOCK)
    parts = p.new_empty(samples, blocks, 6)
    errors, factors = p.new_empty(samples), p.new_empty(samples, 3)
    _error_sums[(blocks, samples)](
        p, y, parts, size, rows, columns, p.shape[-1], grid is not None, BLOCK, num_warps=4
    )
    _relative_errors[(samples,)](
        parts, errors, factors, blocks, weight, grid is not None, power_of_two(blocks), num_warps=1
    )
    return errors, factors


def loss_backward(
    p: Tensor, y: Tensor, factors: Tensor, d_errors: Tensor, grid: tuple[int, int] | None
) -> Tensor:
    samples, size = len(p), p[0].numel()
    rows, columns = grid or (1, 1)
    d_p = torch.empty_like(p)
    _loss_back[(-(-size // BLOCK), samples)](
        p, y, factors, d_errors, d_p, size, rows, columns, p.shape[-1], grid is not None, BLOCK, num_warps=4
    )
    return d_p
