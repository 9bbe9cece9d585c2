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

MAX_INVERTED_ROWS = 52  # larger matrices are divided into blocks
SPRING = 100.0  # stiffness over the wave speeds at the node

Block = Float[Tensor, "B I J m m"]  # per node; rows are equations, columns unknowns
Columns = Float[Tensor, "B K N 4 4"]
Dense = Float[Tensor, "B D D"]


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
        inverse: inverse (B, 4N, 4N) of each column after elimination of the previous columns.
        lower: coupling of each column to the previous column.
        upper: coupling of each column to the next column.
    """

    cut: int
    inverse: list[Dense]
    lower: Columns
    upper: Columns


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
    batch, columns, _, rows = own.shape[:4]
    inverses: list[Dense] = []
    for k in range(columns):
        pairs = rows if k == columns - 1 else int(k < cut)
        matrix = _column_matrix(own[:, k], below[:, k], above[:, k], springs[:, k, 0, :pairs])
        if k:
            matrix = matrix - _triple_product(lower[:, k], inverses[-1], upper[:, k - 1])
        inverses.append(inverse(matrix.reshape(batch, 8 * rows, 8 * rows)))
    return Factors(cut, inverses, lower, upper)


def solve(factors: Factors, right: Float[Tensor, "B I J 4"]) -> Float[Tensor, "B I J 4"]:
    """Solve for the unknowns.

    Args:
        factors: factorised matrix.
        right: right-hand side; both nodes of a pair on the cut have that of their whole cell.
    """
    folded = _fold(right)
    folded[:, -1] /= 2
    folded[:, : factors.cut, :, 0] /= 2
    shape = folded.shape
    folded = folded.flatten(2, 3)[..., None]
    solutions: list[Tensor] = []
    for k, inverted in enumerate(factors.inverse):
        rest = folded[:, k]
        if k:
            rest = rest - factors.lower[:, k] @ solutions[-1].unflatten(1, (-1, 4))
        solutions.append(inverted @ rest.flatten(1, 2))
    for k in range(len(solutions) - 2, -1, -1):
        coupled = factors.upper[:, k] @ solutions[k + 1].unflatten(1, (-1, 4))
        solutions[k] = solutions[k] - factors.inverse[k] @ coupled.flatten(1, 2)
    return average_pairs(_unfold(torch.stack(solutions, dim=1).view(shape)), factors.cut)


def average_pairs(values: Float[Tensor, "B I J ..."], cut: int) -> Float[Tensor, "B I J ..."]:
    """Set both nodes of each pair on the cut to their mean, in place."""
    if cut:
        mean = (values[:, :cut, 0] + values[:, -cut:, 0].flip(1)) / 2
        values[:, :cut, 0], values[:, -cut:, 0] = mean, mean.flip(1)
    return values


def inverse(matrix: Dense, unknowns: int = 4) -> Dense:
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


def _fold(values: Float[Tensor, "B I J ..."]) -> Float[Tensor, "B K 2 J ..."]:
    columns = values.shape[1] // 2 + 1
    return torch.stack([values[:, :columns], values.flip(1)[:, :columns]], dim=2)


def _unfold(values: Float[Tensor, "B K 2 J ..."]) -> Float[Tensor, "B I J ..."]:
    first, second = values.unbind(2)
    middle = (first[:, -1:] + second[:, -1:]) / 2
    return torch.cat([first[:, :-1], middle, second[:, :-1].flip(1)], dim=1)


def _column_matrix(own: Tensor, below: Tensor, above: Tensor, spring: Tensor) -> Float[Tensor, "B N 4 N 4"]:
    """Matrix of a column from the blocks (B, 2, J, 4, 4) of both sides and the springs (B, pairs, 4, 4)."""
    batch, _, rows = own.shape[:3]
    index = torch.arange(2 * rows, device=own.device).view(2, rows)
    matrix = own.new_zeros(batch, 2 * rows, 2 * rows, 4, 4)
    matrix[:, index.ravel(), index.ravel()] = own.flatten(1, 2)
    matrix[:, index[:, :-1].ravel(), index[:, 1:].ravel()] = above[:, :, :-1].flatten(1, 2)
    matrix[:, index[:, 1:].ravel(), index[:, :-1].ravel()] = below[:, :, 1:].flatten(1, 2)
    first, second = index[:, : spring.shape[1]]
    for node, twin in ((first, second), (second, first)):
        matrix[:, node, node] += spring
        matrix[:, node, twin] -= spring
    return matrix.transpose(2, 3)


def _triple_product(left: Tensor, middle: Dense, right: Tensor) -> Float[Tensor, "B N 4 N 4"]:
    """left · middle · right with block-diagonal `left` and `right` (B, N, 4, 4)."""
    batch, nodes = left.shape[:2]
    rows = left @ middle.view(batch, nodes, 4, 4 * nodes)
    columns = rows.view(batch, 4 * nodes, nodes, 4).transpose(1, 2) @ right
    return columns.transpose(1, 2).reshape(batch, nodes, 4, nodes, 4)
