"""Batched inverses of small matrices in Triton: Gauss–Jordan elimination, one program per matrix.

Library inverses of this size need a sequence of kernel launches, for small batches one sequence per matrix.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

MAX_ROWS = 64  # a matrix has to fit in the registers of one program


@triton.jit
def _invert(a_ptr, out_ptr, rows, SB, SR, SC, B: tl.constexpr):
    """In-place Gauss–Jordan elimination with partial pivoting; rows and columns are permuted at the end."""
    r, c = tl.arange(0, B), tl.arange(0, B)
    inside = (r < rows)[:, None] & (c < rows)[None, :]
    head = tl.program_id(0).to(tl.int64)
    tile = tl.load(a_ptr + head * SB + r[:, None] * SR + c[None, :] * SC, mask=inside, other=0.0)
    step_of_row = tl.where(r < rows, -1, B)
    row_of_step = tl.zeros([B], tl.int32)
    for step in range(rows):
        column = tl.sum(tl.where(c[None, :] == step, tile, 0.0), axis=1)
        size = tl.where(column == column, tl.abs(column), 0.0)  # 0 for NaN, so that each row is a pivot once
        pivot_row = tl.argmax(tl.where(step_of_row < 0, size, -1.0), axis=0)
        is_pivot, is_step = r == pivot_row, c == step
        pivot = tl.sum(tl.where(is_pivot, column, 0.0), axis=0)
        row = tl.sum(tl.where(is_pivot[:, None], tile, 0.0), axis=0)
        row = tl.where(is_step, 1.0, row) / pivot
        rest = tl.where(is_step[None, :], 0.0, tile) - column[:, None] * row[None, :]
        tile = tl.where(is_pivot[:, None], row[None, :], rest)
        step_of_row = tl.where(is_pivot, step, step_of_row)
        row_of_step = tl.where(is_step, pivot_row, row_of_step)
    offset = head * rows * rows + step_of_row[:, None] * rows + row_of_step[None, :]
    tl.store(out_ptr + offset, tile, mask=inside)


def small_inverse(matrices: Float[Tensor, "B D D"]) -> Float[Tensor, "B D D"]:
    """Inverses of float32 matrices with up to 64 rows; not finite for singular matrices."""
    out = torch.empty(matrices.shape, dtype=matrices.dtype, device=matrices.device)
    if len(matrices):
        _invert[(len(matrices),)](
            matrices, out, matrices.shape[1], *matrices.stride(), B=MAX_ROWS, num_warps=16
        )
    return out
