"""Block elimination for five-point stencils on the cells of C-grids, in batches; exact to rounding.

The grid is folded in the middle of its first axis: cells (i, j) and (I - 1 - i, j) share a column. Couplings
across the wake and around the leading edge lie inside of a column.

Axes: B grids, I × J cells, K = I/2 columns, N = 2J cells of a column, m unknowns of a cell.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from linearno.solvers.linalg.c_grid_elimination import StencilBlocks
from linearno.solvers.linalg.column_elimination import (
    ColumnFactors,
    eliminate,
    side_matrices,
    substitute,
)


def factorise_cells(blocks: StencilBlocks) -> ColumnFactors:
    """Factorise the matrix.

    Args:
        blocks: the matrix, float32 or float64, I even. `below` of a cell on the first line couples it to the
            cell on the other side of the wake; it is zero on a wall. Blocks to the outside are zero.
    """
    own, before, after, below, above = (_fold(part) for part in blocks)
    lower = torch.cat([before[:, :, 0], after[:, :, 1]], dim=2)
    upper = torch.cat([after[:, :, 0], before[:, :, 1]], dim=2)
    columns, rows = own.shape[1], own.shape[3]
    index = torch.arange(rows, device=own.device)

    def column(k: int) -> Tensor:
        matrix = side_matrices(own[:, k], below[:, k], above[:, k])
        matrix[:, 0, rows] += below[:, k, 0, 0]
        matrix[:, rows, 0] += below[:, k, 1, 0]
        if k == columns - 1:
            matrix[:, index, index + rows] += upper[:, k, :rows]
            matrix[:, index + rows, index] += upper[:, k, rows:]
        return matrix.transpose(2, 3)

    return eliminate(column, lower, upper)


def solve_cells(factors: ColumnFactors, right: Float[Tensor, "B I J m"]) -> Float[Tensor, "B I J m"]:
    """Solve for the unknowns."""
    folded = _fold(right)
    first, second = substitute(factors, folded.flatten(2, 3)).view(folded.shape).unbind(2)
    return torch.cat([first, second.flip(1)], dim=1)


def select_factors(factors: ColumnFactors, index: Int64[Tensor, "b"]) -> ColumnFactors:
    """Factors of the matrices at `index`."""
    inverses = [inverted[index] for inverted in factors.inverse]
    return ColumnFactors(inverses, factors.lower[index], factors.upper[index])


def replace_factors(factors: ColumnFactors, index: Int64[Tensor, "b"], new: ColumnFactors) -> None:
    """Overwrite the factors of the matrices at `index`, in place."""
    for inverted, part in zip(factors.inverse, new.inverse, strict=True):
        inverted[index] = part
    factors.lower[index], factors.upper[index] = new.lower, new.upper


def _fold(values: Float[Tensor, "B I J ..."]) -> Float[Tensor, "B K 2 J ..."]:
    columns = values.shape[1] // 2
    return torch.stack([values[:, :columns], values.flip(1)[:, :columns]], dim=2)
