"""Inverses of many small matrices at once, on CUDA in Triton: Gauss and Jordan's method, a program for each.

A library's batched inverse of this size takes a chain of launches, and for few matrices one chain for each.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

LARGEST = 64  # rows that a program holds


@triton.jit
def _invert(a_ptr, out_ptr, rows, SB, SR, SC, B: tl.constexpr):
    """Each step clears a column with the row that is largest there of those not used yet, and writes what it
    does to the identity into that column. Nothing changes places before the end."""
    r, c = tl.arange(0, B), tl.arange(0, B)
    inside = (r < rows)[:, None] & (c < rows)[None, :]
    head = tl.program_id(0).to(tl.int64)
    tile = tl.load(a_ptr + head * SB + r[:, None] * SR + c[None, :] * SC, mask=inside, other=0.0)
    step_of_row = tl.where(r < rows, -1, B)
    row_of_step = tl.zeros([B], tl.int32)
    for step in range(rows):
        column = tl.sum(tl.where(c[None, :] == step, tile, 0.0), axis=1)
        known = tl.where(column == column, tl.abs(column), 0.0)  # NaN is no size: each row must have its turn
        chosen = tl.argmax(tl.where(step_of_row < 0, known, -1.0), axis=0)
        here, now = r == chosen, c == step
        pivot = tl.sum(tl.where(here, column, 0.0), axis=0)
        row = tl.sum(tl.where(here[:, None], tile, 0.0), axis=0)
        row = tl.where(now, 1.0, row) / pivot
        rest = tl.where(now[None, :], 0.0, tile) - column[:, None] * row[None, :]
        tile = tl.where(here[:, None], row[None, :], rest)
        step_of_row = tl.where(here, step, step_of_row)
        row_of_step = tl.where(now, chosen, row_of_step)
    place = head * rows * rows + step_of_row[:, None] * rows + row_of_step[None, :]
    tl.store(out_ptr + place, tile, mask=inside)


def small_inverse(matrices: Float[Tensor, "B D D"]) -> Float[Tensor, "B D D"]:
    """Of float32 matrices of up to 64 rows; of one that has none, something that is not finite."""
    out = torch.empty(matrices.shape, dtype=matrices.dtype, device=matrices.device)
    if len(matrices):
        _invert[(len(matrices),)](
            matrices, out, matrices.shape[1], *matrices.stride(), B=LARGEST, num_warps=16
        )
    return out
