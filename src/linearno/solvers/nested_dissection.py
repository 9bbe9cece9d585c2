"""Nested dissection: a direct solver for Taylor–Hood matrices on a structured grid, many grids at once.

Boxes of elements are merged in pairs until one is left; what then lies inside a box and no longer on its
border is eliminated. All boxes of a level look alike, so that a level is a few batched products of dense
matrices, on a CPU or a GPU. For K × K elements the work grows as K³, that of a band solver as K⁴.

Axes: B grids, P × Q boxes along and across, D unknowns of a box.
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

Unknown = tuple[int, int, int]  # kind (0 and 1 velocities, 2 pressure), half elements along and across
Systems = Float64[Tensor, "B _ _ _ _"]  # matrices, with the right-hand sides as one more column
Solutions = Float64[Tensor, "B _ _ _"]
VELOCITIES, PRESSURE = (0, 1), 2
NODES = ((1, 1), (0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2))  # of an element
CORNERS = ((0, 0), (0, 2), (2, 0), (2, 2))
ELEMENT: list[Unknown] = [(kind, *node) for node in NODES for kind in VELOCITIES]
ELEMENT += [(PRESSURE, *corner) for corner in CORNERS]
INNER = len(VELOCITIES)  # unknowns inside an element: those of its first node


class Merge(NamedTuple):
    """Two neighbours become one box: places of their unknowns in its list, whose first `inner` end here."""

    axis: int  # of the boxes' systems: 1 along, 2 across
    first: list[int]
    second: list[int]
    unknowns: list[Unknown]
    inner: int


def solve_by_dissection(systems: Float64[Tensor, "B P Q 22 23"]) -> Float64[Tensor, "B P Q 22"]:
    """The unknowns of all elements, from their shares of the matrix and of the right-hand side.

    In the order of `ELEMENT`. Velocities on the walls and at the inlet are fixed: in their rows and columns
    only the diagonal may differ from zero, and they come out as zero. P and Q are powers of two, from 2. Rows
    change places within a level only, which is enough here; what a level cannot solve is not finite.
    """
    merges = merges_of(systems.shape[1], systems.shape[2])
    systems, found = _eliminate(systems, INNER)
    levels = [found]
    for merge in merges[:-1]:
        systems, found = _eliminate(_merged(systems, merge), merge.inner)
        levels.append(found)
    values = _solve_last(_merged(systems, merges[-1]), merges[-1].unknowns)
    for merge, found in zip(reversed(merges), reversed(levels), strict=True):
        values = _substitute(found, _parted(values, merge))
    return values


def _eliminate(systems: Systems, inner: int) -> tuple[Systems, Systems]:
    """The systems of all but the first `inner` unknowns, and these as a function of the others."""
    above, below = systems[..., :inner, :], systems[..., inner:, :]
    found = torch.linalg.solve_ex(above[..., :inner], above[..., inner:])[0]
    return below[..., inner:] - below[..., :inner] @ found, found


def _substitute(found: Systems, rest: Solutions) -> Solutions:
    """All unknowns of the boxes, given those on their borders."""
    inner = found[..., -1] - (found[..., :-1] @ rest[..., None])[..., 0]
    return torch.cat([inner, rest], dim=-1)


def _merged(systems: Systems, merge: Merge) -> Systems:
    """The sum of both children's systems, on the unknowns of either."""
    size = len(merge.unknowns)
    first, second = systems.unflatten(merge.axis, (-1, 2)).unbind(merge.axis + 1)
    result = systems.new_zeros(*first.shape[:3], size * (size + 1))  # flat: twice as fast as rows and columns
    result.index_copy_(-1, _places(merge.first, size, systems.device), first.flatten(-2))
    result.index_add_(-1, _places(merge.second, size, systems.device), second.flatten(-2))
    return result.unflatten(-1, (size, size + 1))


def _places(unknowns: list[int], size: int, device: torch.device) -> Int[Tensor, "K"]:
    """Where rows and columns of some unknowns lie in a flat system of `size`, with their right-hand sides."""
    rows = torch.tensor(unknowns, device=device)
    columns = torch.cat([rows, rows.new_tensor([size])])
    return (rows[:, None] * (size + 1) + columns).flatten()


def _parted(values: Solutions, merge: Merge) -> Solutions:
    """What `_merged` joined, taken apart."""
    children = torch.stack([values[..., merge.first], values[..., merge.second]], dim=merge.axis + 1)
    return children.flatten(merge.axis, merge.axis + 1)


def _solve_last(systems: Systems, unknowns: list[Unknown]) -> Solutions:
    """All unknowns of the one box that is left; the fixed ones are zero."""
    across = max(j for _, _, j in unknowns) // 2
    free = [at for at, unknown in enumerate(unknowns) if not is_fixed(unknown, across)]
    system = systems[..., free, :][..., [*free, -1]]
    result = torch.zeros_like(systems[..., -1])
    result[..., free] = torch.linalg.solve_ex(system[..., :-1], system[..., -1:])[0][..., 0]
    return result


def is_fixed(unknown: Unknown, across: int) -> bool:
    """A velocity at the inlet or on a wall of a grid that is `across` elements wide."""
    kind, i, j = unknown
    return kind in VELOCITIES and (i == 0 or j in (0, 2 * across))


@cache
def merges_of(along: int, across: int) -> list[Merge]:
    """How `along` × `across` elements become one box; boxes stay as square as they can."""
    merges, border, width, height = [], ELEMENT[INNER:], 1, 1
    while (width, height) != (along, across):
        axis = 1 if height == across or width < min(height, along) else 2
        shift = (2 * width, 0) if axis == 1 else (0, 2 * height)
        second = [(kind, i + shift[0], j + shift[1]) for kind, i, j in border]
        width, height = (2 * width, height) if axis == 1 else (width, 2 * height)
        together = dict.fromkeys(border + second)
        inner = [u for u in together if 0 < u[1] < 2 * width and 0 < u[2] < 2 * height]
        unknowns = list(dict.fromkeys([*inner, *together]))
        place = {unknown: at for at, unknown in enumerate(unknowns)}
        merges.append(
            Merge(axis, [place[u] for u in border], [place[u] for u in second], unknowns, len(inner))
        )
        border = unknowns[len(inner) :]
    return merges
