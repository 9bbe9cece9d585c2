"""A direct solver for matrices with a block for each node of a grid and each of its neighbours, many at once.

The grid is folded in the middle of its first axis, so that the two nodes of a pair at a cut share a column of
the folded grid; the columns are eliminated one after the other. What couples two columns couples node with
node, so that a column costs one inverse of a dense matrix. Where a node is there twice (at the cut, and in
the last column, where the fold is), each of the two has half of its equation and both are tied together by a
stiff spring: the solution is approximate there, which is enough for a march to a steady state.

Axes: B grids, I × J nodes, K = (I + 1)/2 columns, N = 2J nodes of a column, 4 unknowns of a node.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.solvers.euler import Blocks

BASE = 13  # nodes whose matrix is inverted at once
SPRING = 100.0  # against the wave speeds at its node

Columns = Float[Tensor, "B K N 4 4"]
Dense = Float[Tensor, "B D D"]


class Factors(NamedTuple):
    cut: int  # how many columns begin with a pair
    inverse: list[Dense]  # of each column, once those before it are eliminated
    lower: Columns  # a column's coupling to the one before it
    upper: Columns  # and to the one after it


def factorise(blocks: Blocks, spring: Float[Tensor, "B I J 4 4"], cut: int) -> Factors:
    """Eliminate column after column. Matrices and springs may be float32."""
    own, below, above, springs = (_folded(part) for part in (blocks.own, blocks.below, blocks.above, spring))
    for part in (own, below, above):
        part[:, -1] /= 2
    before, after = _folded(blocks.before), _folded(blocks.after)  # on the way back they change places
    lower = torch.stack([before[:, :, 0], after[:, :, 1]], dim=2).flatten(2, 3)
    upper = torch.stack([after[:, :, 0], before[:, :, 1]], dim=2).flatten(2, 3)
    batch, columns, _, rows = own.shape[:4]
    inverses: list[Dense] = []
    for k in range(columns):
        pairs = rows if k == columns - 1 else int(k < cut)
        matrix = _column(own[:, k], below[:, k], above[:, k], springs[:, k, 0, :pairs])
        if k:
            matrix = matrix - _product(lower[:, k], inverses[-1], upper[:, k - 1])
        inverses.append(inverse(matrix.reshape(batch, 8 * rows, 8 * rows)))
    return Factors(cut, inverses, lower, upper)


def solve(factors: Factors, right: Float[Tensor, "B I J 4"]) -> Float[Tensor, "B I J 4"]:
    """The unknowns. Both nodes of a pair at the cut have the whole right-hand side of their cell."""
    folded = _folded(right)
    folded[:, -1] /= 2
    folded[:, : factors.cut, :, 0] /= 2
    shape = folded.shape
    folded = folded.flatten(2, 3)[..., None]
    found: list[Tensor] = []
    for k, inverted in enumerate(factors.inverse):
        there = folded[:, k]
        if k:
            there = there - factors.lower[:, k] @ found[-1].unflatten(1, (-1, 4))
        found.append(inverted @ there.flatten(1, 2))
    for k in range(len(found) - 2, -1, -1):
        beyond = factors.upper[:, k] @ found[k + 1].unflatten(1, (-1, 4))
        found[k] = found[k] - factors.inverse[k] @ beyond.flatten(1, 2)
    return paired(_unfolded(torch.stack(found, dim=1).view(shape)), factors.cut)


def paired(values: Float[Tensor, "B I J ..."], cut: int) -> Float[Tensor, "B I J ..."]:
    """With the mean of both nodes of each pair at both of them."""
    if cut:
        mean = (values[:, :cut, 0] + values[:, -cut:, 0].flip(1)) / 2
        values[:, :cut, 0], values[:, -cut:, 0] = mean, mean.flip(1)
    return values


def inverse(matrix: Dense) -> Dense:
    """By halves, which are products of large matrices; rows change places within 13 nodes at most."""
    nodes = matrix.shape[-1] // 4
    if nodes <= BASE:
        return _base_inverse(matrix)
    half = nodes // 2 * 4
    upper, lower = matrix[:, :half], matrix[:, half:]
    first, right, left = inverse(upper[..., :half]), upper[..., half:], lower[..., :half]
    right, left = first @ right, left @ first
    last = inverse(lower[..., half:] - lower[..., :half] @ right)
    corner = right @ last
    found = torch.empty_like(matrix)
    found[:, :half, :half] = torch.baddbmm(first, corner, left)
    found[:, :half, half:] = -corner
    found[:, half:, :half] = -(last @ left)
    found[:, half:, half:] = last
    return found


def _base_inverse(matrix: Dense) -> Dense:
    if matrix.is_cuda and matrix.dtype == torch.float32:
        from linearno.solvers.batched_inverse import small_inverse

        return small_inverse(matrix)
    return torch.linalg.inv_ex(matrix)[0]


def _folded(values: Float[Tensor, "B I J ..."]) -> Float[Tensor, "B K 2 J ..."]:
    columns = values.shape[1] // 2 + 1
    return torch.stack([values[:, :columns], values.flip(1)[:, :columns]], dim=2)


def _unfolded(values: Float[Tensor, "B K 2 J ..."]) -> Float[Tensor, "B I J ..."]:
    there, back = values.unbind(2)
    fold = (there[:, -1:] + back[:, -1:]) / 2
    return torch.cat([there[:, :-1], fold, back[:, :-1].flip(1)], dim=1)


def _column(own: Tensor, below: Tensor, above: Tensor, spring: Tensor) -> Float[Tensor, "B N 4 N 4"]:
    """The matrix of a column, from the blocks (B, 2, J, 4, 4) of both its sides."""
    batch, _, rows = own.shape[:3]
    at = torch.arange(2 * rows, device=own.device).view(2, rows)
    matrix = own.new_zeros(batch, 2 * rows, 2 * rows, 4, 4)
    matrix[:, at.ravel(), at.ravel()] = own.flatten(1, 2)
    matrix[:, at[:, :-1].ravel(), at[:, 1:].ravel()] = above[:, :, :-1].flatten(1, 2)
    matrix[:, at[:, 1:].ravel(), at[:, :-1].ravel()] = below[:, :, 1:].flatten(1, 2)
    one, other = at[:, : spring.shape[1]]
    for this, that in ((one, other), (other, one)):
        matrix[:, this, this] += spring
        matrix[:, this, that] -= spring
    return matrix.transpose(2, 3)


def _product(left: Tensor, middle: Dense, right: Tensor) -> Float[Tensor, "B N 4 N 4"]:
    """A dense matrix between two that couple node with node."""
    batch, nodes = left.shape[:2]
    rows = left @ middle.view(batch, nodes, 4, 4 * nodes)
    columns = rows.view(batch, 4 * nodes, nodes, 4).transpose(1, 2) @ right
    return columns.transpose(1, 2).reshape(batch, nodes, 4, nodes, 4)
