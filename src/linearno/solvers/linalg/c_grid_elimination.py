"""Block elimination for five-point stencils on C-grids, in batches.

The grid is folded in the middle of its first axis, so that the two nodes of a pair on the cut share a column
of the folded grid; columns are eliminated in sequence. Blocks between columns are block-diagonal, so that a
column costs one dense inverse. A node that is stored twice (on the cut, and in the last column, where the
grid is folded) has half of its equation in each copy, and a stiff spring couples the copies: the solution is
approximate there, which suffices for a march to a steady state.

Axes: B grids, I × J nodes, K = (I + 1)/2 columns, N = 2J nodes of a column, 4 unknowns of a node.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.solvers.linalg.column_elimination import (
    ColumnFactors,
    eliminate,
    side_matrices,
    substitute,
)

SPRING = 100.0  # stiffness over the wave speeds at the node

Block = Float[Tensor, "B I J m m"]  # per node; rows are equations, columns unknowns


class StencilBlocks(NamedTuple):
    """Sparse matrix: blocks of each node and of its neighbours along and across the grid."""

    own: Block
    before: Block  # neighbour before along the first axis
    after: Block
    below: Block  # neighbour before along the second axis
    above: Block


class Factors(NamedTuple):
    """Factorised matrix.

    Args:
        cut: number of columns that start with a pair.
        columns: factorised columns of the folded grid.
    """

    cut: int
    columns: ColumnFactors


def factorise(blocks: StencilBlocks, spring: Block, cut: int) -> Factors:
    """Eliminate the columns in sequence.

    Args:
        blocks: the matrix, float32 or float64.
        spring: stiffness between the two copies of a node.
        cut: number of pairs on the cut.
    """
    own, below, above, springs = (_fold(part) for part in (blocks.own, blocks.below, blocks.above, spring))
    for part in (own, below, above):
        part[:, -1] /= 2
    before, after = _fold(blocks.before), _fold(blocks.after)  # their roles swap in the second half
    lower = torch.stack([before[:, :, 0], after[:, :, 1]], dim=2).flatten(2, 3)
    upper = torch.stack([after[:, :, 0], before[:, :, 1]], dim=2).flatten(2, 3)
    columns, rows = own.shape[1], own.shape[3]

    def column(k: int) -> Tensor:
        pairs = rows if k == columns - 1 else int(k < cut)
        return _column_matrix(own[:, k], below[:, k], above[:, k], springs[:, k, 0, :pairs])

    return Factors(cut, eliminate(column, lower, upper))


def solve(factors: Factors, right: Float[Tensor, "B I J 4"]) -> Float[Tensor, "B I J 4"]:
    """Solve for the unknowns.

    Args:
        factors: factorised matrix.
        right: right-hand side; both nodes of a pair on the cut have that of their whole cell.
    """
    folded = _fold(right)
    folded[:, -1] /= 2
    folded[:, : factors.cut, :, 0] /= 2
    solution = substitute(factors.columns, folded.flatten(2, 3))
    return average_pairs(_unfold(solution.view(folded.shape)), factors.cut)


def average_pairs(values: Float[Tensor, "B I J ..."], cut: int) -> Float[Tensor, "B I J ..."]:
    """Set both nodes of each pair on the cut to their mean, in place."""
    if cut:
        mean = (values[:, :cut, 0] + values[:, -cut:, 0].flip(1)) / 2
        values[:, :cut, 0], values[:, -cut:, 0] = mean, mean.flip(1)
    return values


def _fold(values: Float[Tensor, "B I J ..."]) -> Float[Tensor, "B K 2 J ..."]:
    columns = values.shape[1] // 2 + 1
    return torch.stack([values[:, :columns], values.flip(1)[:, :columns]], dim=2)


def _unfold(values: Float[Tensor, "B K 2 J ..."]) -> Float[Tensor, "B I J ..."]:
    first, second = values.unbind(2)
    middle = (first[:, -1:] + second[:, -1:]) / 2
    return torch.cat([first[:, :-1], middle, second[:, :-1].flip(1)], dim=1)


def _column_matrix(own: Tensor, below: Tensor, above: Tensor, spring: Tensor) -> Float[Tensor, "B N 4 N 4"]:
    """Matrix of a column from the blocks (B, 2, J, 4, 4) of both sides and the springs (B, pairs, 4, 4)."""
    matrix = side_matrices(own, below, above)
    index = torch.arange(matrix.shape[1], device=own.device).view(2, -1)
    first, second = index[:, : spring.shape[1]]
    for node, twin in ((first, second), (second, first)):
        matrix[:, node, node] += spring
        matrix[:, node, twin] -= spring
    return matrix.transpose(2, 3)
