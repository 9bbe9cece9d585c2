"""Nested dissection: a direct solver for Taylor–Hood matrices on structured grids, in batches.

Boxes of elements are merged in pairs until one box is left; after each merge the unknowns that are no longer
on the border of their box are eliminated. All boxes of a level have the same structure, so that a level is a
few batched products of dense matrices, on a CPU or a GPU. For K × K elements the cost is O(K³); a band solver
costs O(K⁴).

Axes: B grids, P × Q boxes along and across, D unknowns of a box.
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

Unknown = tuple[int, int, int]  # kind (0, 1: velocities; 2: pressure), position in half elements
Systems = Float64[Tensor, "B _ _ _ _"]  # matrices with the right-hand side as last column
Solutions = Float64[Tensor, "B _ _ _"]
VELOCITIES, PRESSURE = (0, 1), 2
NODES = (
    (1, 1),
    (0, 0),
    (0, 1),
    (0, 2),
    (1, 0),
    (1, 2),
    (2, 0),
    (2, 1),
    (2, 2),
)  # of an element, in half elements
CORNERS = ((0, 0), (0, 2), (2, 0), (2, 2))  # nodes with a pressure
ELEMENT: list[Unknown] = [(kind, *node) for node in NODES for kind in VELOCITIES]
ELEMENT += [(PRESSURE, *corner) for corner in CORNERS]
ELEMENT_INNER_UNKNOWNS = len(VELOCITIES)  # velocities of the first node, at the centre


class Merge(NamedTuple):
    """Merge of two neighbouring boxes.

    Args:
        axis: axis of the systems along which the boxes are neighbours: 1 along, 2 across.
        first: positions of the first box's unknowns in `unknowns`.
        second: positions of the second box's unknowns in `unknowns`.
        unknowns: unknowns of both boxes, inner ones first.
        inner: number of unknowns inside the merged box, which are eliminated.
    """

    axis: int
    first: list[int]
    second: list[int]
    unknowns: list[Unknown]
    inner: int


def solve_by_dissection(systems: Float64[Tensor, "B P Q 22 23"]) -> Float64[Tensor, "B P Q 22"]:
    """Solve for the unknowns of all elements, in the order of `ELEMENT`.

    Pivoting is limited to the unknowns eliminated in a level. A singular level gives non-finite values.

    Args:
        systems: element matrices with the right-hand side as last column; P and Q are powers of two from 2.
            Rows and columns of fixed velocities (`is_fixed`) are zero except for the diagonal, so that the
            solution is zero there.
    """
    merges = plan_merges(systems.shape[1], systems.shape[2])
    systems, solved = _eliminate(systems, ELEMENT_INNER_UNKNOWNS)
    levels = [solved]
    for merge in merges[:-1]:
        systems, solved = _eliminate(_merge_systems(systems, merge), merge.inner)
        levels.append(solved)
    values = _solve_last(_merge_systems(systems, merges[-1]), merges[-1].unknowns)
    for merge, solved in zip(reversed(merges), reversed(levels), strict=True):
        values = _substitute(solved, _split_values(values, merge))
    return values


def _eliminate(systems: Systems, inner: int) -> tuple[Systems, Systems]:
    """Eliminate the first `inner` unknowns; also return them as affine functions of the others."""
    above, below = systems[..., :inner, :], systems[..., inner:, :]
    solved = torch.linalg.solve_ex(above[..., :inner], above[..., inner:])[0]
    return below[..., inner:] - below[..., :inner] @ solved, solved


def _substitute(solved: Systems, border: Solutions) -> Solutions:
    """All unknowns of the boxes from those on the borders."""
    inner = solved[..., -1] - (solved[..., :-1] @ border[..., None])[..., 0]
    return torch.cat([inner, border], dim=-1)


def _merge_systems(systems: Systems, merge: Merge) -> Systems:
    """Sum of the systems of two boxes on the union of their unknowns."""
    size = len(merge.unknowns)
    first, second = systems.unflatten(merge.axis, (-1, 2)).unbind(merge.axis + 1)
    result = systems.new_zeros(*first.shape[:3], size * (size + 1))  # flat indexing is twice as fast
    result.index_copy_(-1, _flat_positions(merge.first, size, systems.device), first.flatten(-2))
    result.index_add_(-1, _flat_positions(merge.second, size, systems.device), second.flatten(-2))
    return result.unflatten(-1, (size, size + 1))


def _flat_positions(unknowns: list[int], size: int, device: torch.device) -> Int[Tensor, "K"]:
    """Positions in a flattened system of the entries of `unknowns` and their right-hand sides."""
    rows = torch.tensor(unknowns, device=device)
    columns = torch.cat([rows, rows.new_tensor([size])])
    return (rows[:, None] * (size + 1) + columns).flatten()


def _split_values(values: Solutions, merge: Merge) -> Solutions:
    """Values of both boxes from those of the merged box."""
    children = torch.stack([values[..., merge.first], values[..., merge.second]], dim=merge.axis + 1)
    return children.flatten(merge.axis, merge.axis + 1)


def _solve_last(systems: Systems, unknowns: list[Unknown]) -> Solutions:
    """All unknowns of the last box; fixed unknowns are zero."""
    across = max(j for _, _, j in unknowns) // 2
    free = [at for at, unknown in enumerate(unknowns) if not is_fixed(unknown, across)]
    system = systems[..., free, :][..., [*free, -1]]
    result = torch.zeros_like(systems[..., -1])
    result[..., free] = torch.linalg.solve_ex(system[..., :-1], system[..., -1:])[0][..., 0]
    return result


def is_fixed(unknown: Unknown, across: int) -> bool:
    """Whether the unknown is a velocity at the inlet or on a wall of a grid with `across` elements."""
    kind, i, j = unknown
    return kind in VELOCITIES and (i == 0 or j in (0, 2 * across))


@cache
def plan_merges(along: int, across: int) -> list[Merge]:
    """Merges of `along` × `across` elements to one box, with boxes as square as possible."""
    merges, border, width, height = [], ELEMENT[ELEMENT_INNER_UNKNOWNS:], 1, 1
    while (width, height) != (along, across):
        axis = 1 if height == across or width < min(height, along) else 2
        shift = (2 * width, 0) if axis == 1 else (0, 2 * height)
        second = [(kind, i + shift[0], j + shift[1]) for kind, i, j in border]
        width, height = (2 * width, height) if axis == 1 else (width, 2 * height)
        union = dict.fromkeys(border + second)
        inner = [u for u in union if 0 < u[1] < 2 * width and 0 < u[2] < 2 * height]
        unknowns = list(dict.fromkeys([*inner, *union]))
        position = {unknown: at for at, unknown in enumerate(unknowns)}
        merges.append(
            Merge(axis, [position[u] for u in border], [position[u] for u in second], unknowns, len(inner))
        )
        border = unknowns[len(inner) :]
    return merges
