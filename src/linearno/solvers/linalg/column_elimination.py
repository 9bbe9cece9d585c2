"""Block elimination of matrices whose unknowns form a sequence of columns, in batches.

Blocks between neighbouring columns are block-diagonal, so that a column costs one dense inverse.

Axes: B matrices, K columns, N nodes of a column, m unknowns of a node, D = N m.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MAX_INVERTED_ROWS = 52  # larger matrices are divided into blocks

Columns = Float[Tensor, "B K N m m"]
Dense = Float[Tensor, "B D D"]


class ColumnFactors(NamedTuple):
    """Factorised matrix.

    Args:
        inverse: inverse of each column after elimination of the previous columns.
        lower: coupling of each column to the previous column.
        upper: coupling of each column to the next column.
    """

    inverse: list[Dense]
    lower: Columns
    upper: Columns


def eliminate(
    column: Callable[[int], Float[Tensor, "B N m N m"]], lower: Columns, upper: Columns
) -> ColumnFactors:
    """Eliminate the columns in sequence.

    Args:
        column: matrix of a column, with its index.
        lower: coupling of each column to the previous column.
        upper: coupling of each column to the next column.
    """
    inverses: list[Dense] = []
    for k in range(lower.shape[1]):
        matrix = column(k)
        if k:
            matrix = matrix - _triple_product(lower[:, k], inverses[-1], upper[:, k - 1])
        inverses.append(inverse(matrix.flatten(3).flatten(1, 2), matrix.shape[2]))
    return ColumnFactors(inverses, lower, upper)


def substitute(factors: ColumnFactors, right: Float[Tensor, "B K N m"]) -> Float[Tensor, "B K N m"]:
    """Solve for the unknowns."""
    unknowns = right.shape[-1]
    folded = right[..., None]
    solutions: list[Tensor] = []
    for k, inverted in enumerate(factors.inverse):
        rest = folded[:, k]
        if k:
            rest = rest - factors.lower[:, k] @ solutions[-1].unflatten(1, (-1, unknowns))
        solutions.append(inverted @ rest.flatten(1, 2))
    for k in range(len(solutions) - 2, -1, -1):
        coupled = factors.upper[:, k] @ solutions[k + 1].unflatten(1, (-1, unknowns))
        solutions[k] = solutions[k] - factors.inverse[k] @ coupled.flatten(1, 2)
    return torch.stack(solutions, dim=1).view(right.shape)


def side_matrices(
    own: Float[Tensor, "B 2 J m m"], below: Float[Tensor, "B 2 J m m"], above: Float[Tensor, "B 2 J m m"]
) -> Float[Tensor, "B N N m m"]:
    """Matrix of a folded column from the blocks of the nodes of both sides, without coupling of the sides."""
    batch, _, rows, unknowns = own.shape[:4]
    index = torch.arange(2 * rows, device=own.device).view(2, rows)
    matrix = own.new_zeros(batch, 2 * rows, 2 * rows, unknowns, unknowns)
    matrix[:, index.ravel(), index.ravel()] = own.flatten(1, 2)
    matrix[:, index[:, :-1].ravel(), index[:, 1:].ravel()] = above[:, :, :-1].flatten(1, 2)
    matrix[:, index[:, 1:].ravel(), index[:, :-1].ravel()] = below[:, :, 1:].flatten(1, 2)
    return matrix


def inverse(matrix: Dense, unknowns: int) -> Dense:
    """Recursive block inverse, mostly matrix products; pivots within `MAX_INVERTED_ROWS` rows only.

    Args:
        matrix: a batch of matrices.
        unknowns: unknowns of a node, which are not divided.
    """
    rows = matrix.shape[-1]
    if rows <= MAX_INVERTED_ROWS:
        return _small_inverse(matrix)
    half = rows // 2 // unknowns * unknowns
    upper, lower = matrix[:, :half], matrix[:, half:]
    first, right, left = inverse(upper[..., :half], unknowns), upper[..., half:], lower[..., :half]
    right, left = first @ right, left @ first
    last = inverse(lower[..., half:] - lower[..., :half] @ right, unknowns)
    corner = right @ last
    result = torch.empty_like(matrix)
    result[:, :half, :half] = torch.baddbmm(first, corner, left)
    result[:, :half, half:] = -corner
    result[:, half:, :half] = -(last @ left)
    result[:, half:, half:] = last
    return result


def _small_inverse(matrix: Dense) -> Dense:
    if matrix.is_cuda and matrix.dtype == torch.float32:
        from linearno.solvers.linalg.batched_inverse import small_inverse

        return small_inverse(matrix)
    return torch.linalg.inv_ex(matrix)[0]


def _triple_product(left: Tensor, middle: Dense, right: Tensor) -> Float[Tensor, "B N m N m"]:
    """left · middle · right with block-diagonal `left` and `right` (B, N, m, m)."""
    batch, nodes, unknowns = left.shape[:3]
    rows = left @ middle.view(batch, nodes, unknowns, unknowns * nodes)
    columns = rows.view(batch, unknowns * nodes, nodes, unknowns).transpose(1, 2) @ right
    return columns.transpose(1, 2).reshape(batch, nodes, unknowns, nodes, unknowns)
