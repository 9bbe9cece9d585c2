"""Nested dissection for five-point stencils on the cells of C-grids, in batches; exact to rounding.

The first separator is the column of cells at the leading edge with the cells on one side of the wake. It
leaves two blocks of cells, which are divided by lines of cells until at most `LEAF_CELLS` are left. Cells are
eliminated from the leaves to the first separator. Fronts of equal size on a level are one batched product.
For n cells the cost is O(n^1.5); elimination by columns costs O(n²).

Axes: B grids, I × J cells, m unknowns of a cell, G fronts of a group, E eliminated and F remaining cells.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor

from linearno.solvers.linalg.c_grid_elimination import StencilBlocks, inverse

LEAF_CELLS = 16
KINDS = 5  # blocks of a cell: own, before, after, below, above


class Children(NamedTuple):
    """Fronts of one group that are added to fronts of a later group.

    Args:
        group: index of the children's group.
        child: index of each child in its group.
        parent: index of its parent in the later group.
        position: place of each of the child's remaining cells among the parent's cells.
    """

    group: int
    child: Int64[Tensor, "n"]
    parent: Int64[Tensor, "n"]
    position: Int64[Tensor, "n F"]


class Group(NamedTuple):
    """Fronts with equal numbers of cells.

    Args:
        eliminated: cells that are eliminated.
        remaining: other cells of the fronts, which later fronts eliminate.
        entries: blocks of the matrix that enter here: front, row cell, column cell, kind of block, cell.
        children: earlier fronts that enter here; each parent occurs once in each.
        last_uses: groups whose fronts do not enter later.
    """

    eliminated: Int64[Tensor, "G E"]
    remaining: Int64[Tensor, "G F"]
    entries: Int64[Tensor, "5 n"]
    children: list[Children]
    last_uses: list[int]


class Front(NamedTuple):
    """Factors of a group: inverse of the eliminated cells, and couplings with the remaining ones."""

    inverse: Float[Tensor, "B G Em Em"]
    from_remaining: Float[Tensor, "B G Em Fm"]
    to_remaining: Float[Tensor, "B G Fm Em"]


class DissectionFactors(NamedTuple):
    """Factorised matrix.

    Args:
        plan: groups in the order of elimination.
        fronts: their factors.
    """

    plan: list[Group]
    fronts: list[Front]


class _Node(NamedTuple):
    level: int
    eliminated: ndarray
    remaining: ndarray
    children: list["_Node"]


@cache
def plan_dissection(along: int, outward: int, wake: int, device: torch.device) -> list[Group]:
    """Groups of fronts for I × J cells of which `wake` on each side touch each other across the wake.

    Args:
        along: I.
        outward: J.
        wake: cells along each side of the wake.
        device: where the groups are used.
    """
    number = np.arange(along * outward).reshape(along, outward)
    around = _neighbour_cells(number, wake)
    first = np.union1d(number[along // 2 - 1], number[:wake, 0])
    free = np.ones(number.size, dtype=bool)
    free[first] = False
    halves = [number[: along // 2 - 1], number[along // 2 :]]
    children = [_dissect(half, free, around, 1) for half in halves]
    root = _Node(0, first, np.zeros(0, dtype=np.int64), children)
    return _group(list(_descend(root)), around, device)


def _neighbour_cells(number: ndarray, wake: int) -> Int64[ndarray, "n 5"]:
    """Cell itself and its neighbours before, after, below and above; -1 outside."""
    around = np.full((KINDS, *number.shape), -1)
    around[0] = number
    around[1, 1:], around[2, :-1] = number[:-1], number[1:]
    around[3, :, 1:], around[4, :, :-1] = number[:, :-1], number[:, 1:]
    around[3, :wake, 0], around[3, len(number) - wake :, 0] = number[::-1][:wake, 0], number[:wake, 0][::-1]
    return around.reshape(KINDS, -1).T


def _dissect(block: ndarray, free: ndarray, around: ndarray, level: int) -> _Node:
    """Divide a block of cells; `free` are those that no separator has."""
    cells = block[free[block]]
    outside = np.setdiff1d(around[cells], cells)
    remaining = outside[outside >= 0]
    if len(cells) <= LEAF_CELLS:
        return _Node(level, cells, remaining, [])
    axis = 0 if block.shape[0] >= block.shape[1] else 1
    middle = block.shape[axis] // 2
    low, line, high = np.split(block, [middle, middle + 1], axis=axis)
    separator = line[free[line]]
    parts = [part for part in (low, high) if part.size and free[part].any()]
    return _Node(level, separator, remaining, [_dissect(part, free, around, level + 1) for part in parts])


def _descend(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.children:
        yield from _descend(child)


def _group(nodes: list[_Node], around: ndarray, device: torch.device) -> list[Group]:
    """Groups from the deepest level to the first separator."""
    members: dict[tuple[int, int, int], list[_Node]] = {}
    for node in nodes:
        members.setdefault((-node.level, len(node.eliminated), len(node.remaining)), []).append(node)
    place: dict[int, tuple[int, int]] = {}
    groups = []
    for at, key in enumerate(sorted(members)):
        entries, links = [], []
        for index, node in enumerate(members[key]):
            place[id(node)] = (at, index)
            entries.append(_entries(index, node, around))
            cells = np.concatenate([node.eliminated, node.remaining])
            for slot, child in enumerate(node.children):
                links.append((slot, *place[id(child)], index, _positions(child.remaining, cells)))
        eliminated = _tensor(np.stack([node.eliminated for node in members[key]]), device)
        remaining = _tensor(np.stack([node.remaining for node in members[key]]), device)
        enter = _tensor(np.concatenate(entries, axis=1), device)
        groups.append(Group(eliminated, remaining, enter, _link(links, device), []))
    for at, last in {part.group: at for at, group in enumerate(groups) for part in group.children}.items():
        groups[last].last_uses.append(at)
    return groups


def _tensor(values: ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)


def _entries(index: int, node: _Node, around: ndarray) -> ndarray:
    """Entries of the matrix in rows or columns of the eliminated cells; others enter in later fronts."""
    cells = np.concatenate([node.eliminated, node.remaining])
    rows, kinds = np.nonzero(np.isin(around[cells], cells))
    columns = _positions(around[cells][rows, kinds], cells)
    inside = (rows < len(node.eliminated)) | (columns < len(node.eliminated))
    rows, columns, kinds = rows[inside], columns[inside], kinds[inside]
    return np.stack([np.full_like(rows, index), rows, columns, kinds, cells[rows]])


def _positions(some: ndarray, cells: ndarray) -> ndarray:
    order = np.argsort(cells)
    return order[np.searchsorted(cells, some, sorter=order)]


def _link(links: list[tuple[int, int, int, int, ndarray]], device: torch.device) -> list[Children]:
    by_source: dict[tuple[int, int], list[tuple[int, int, ndarray]]] = {}
    for slot, group, child, parent, position in links:
        by_source.setdefault((slot, group), []).append((child, parent, position))
    return [
        Children(group, *(_tensor(np.array(part), device) for part in zip(*some, strict=True)))
        for (_, group), some in by_source.items()
    ]


def factorise_by_dissection(blocks: StencilBlocks, wake: int) -> DissectionFactors:
    """Factorise the matrix.

    Args:
        blocks: the matrix, float32 or float64, I even. `below` of a cell on the first line couples it to the
            cell on the other side of the wake; it is zero on a wall. Blocks to the outside are zero.
        wake: cells along each side of the wake.
    """
    batch, along, outward, unknowns, _ = blocks.own.shape
    plan = plan_dissection(along, outward, wake, blocks.own.device)
    values = torch.stack(blocks, dim=1).flatten(2, 3)  # B 5 n m m
    fronts: list[Front] = []
    schur: list[Tensor | None] = []
    for group in plan:
        matrix = _assemble(group, values, schur)
        size = group.eliminated.shape[1] * unknowns
        inner = inverse(matrix[..., :size, :size].flatten(0, 1), unknowns).unflatten(0, (batch, -1))
        from_remaining = inner @ matrix[..., :size, size:]
        to_remaining = matrix[..., size:, :size].contiguous()
        schur.append(matrix[..., size:, size:] - to_remaining @ from_remaining)
        for used in group.last_uses:
            schur[used] = None
        fronts.append(Front(inner, from_remaining, to_remaining))
    return DissectionFactors(plan, fronts)


def _assemble(group: Group, values: Tensor, schur: list[Tensor | None]) -> Float[Tensor, "B G D D"]:
    """Matrices of the fronts: entries of the matrix and what is left of the children."""
    batch, unknowns = len(values), values.shape[-1]
    fronts, cells = len(group.eliminated), group.eliminated.shape[1] + group.remaining.shape[1]
    front, row, column, kind, cell = group.entries
    matrix = values.new_zeros(batch, fronts, cells, cells, unknowns, unknowns)
    matrix[:, front, row, column] = values[:, kind, cell]
    for source, child, parent, position in group.children:
        rest = schur[source]
        assert rest is not None
        remaining = position.shape[1]
        rest = rest.view(batch, -1, remaining, unknowns, remaining, unknowns).transpose(3, 4)
        matrix[:, parent[:, None, None], position[:, :, None], position[:, None, :]] += rest[:, child]
    return matrix.transpose(3, 4).reshape(batch, fronts, cells * unknowns, cells * unknowns)


def solve_by_dissection(
    factors: DissectionFactors, right: Float[Tensor, "B I J m"]
) -> Float[Tensor, "B I J m"]:
    """Solve for the unknowns."""
    solution = right.flatten(1, 2).clone()
    unknowns = right.shape[-1]
    for (cells, rest, *_), front in zip(factors.plan, factors.fronts, strict=True):
        values = (front.inverse @ solution[:, cells].flatten(2)[..., None])[..., 0]
        solution[:, cells] = values.unflatten(-1, (-1, unknowns))
        change = (front.to_remaining @ values[..., None])[..., 0].unflatten(-1, (-1, unknowns))
        solution.index_add_(1, rest.flatten(), change.flatten(1, 2), alpha=-1)
    for (cells, rest, *_), front in zip(reversed(factors.plan), reversed(factors.fronts), strict=True):
        change = (front.from_remaining @ solution[:, rest].flatten(2)[..., None])[..., 0]
        solution[:, cells] -= change.unflatten(-1, (-1, unknowns))
    return solution.view(right.shape)


def select_factors(factors: DissectionFactors, index: Int64[Tensor, "b"]) -> DissectionFactors:
    """Factors of the matrices at `index`."""
    fronts = [Front(*(part[index] for part in front)) for front in factors.fronts]
    return DissectionFactors(factors.plan, fronts)


def replace_factors(factors: DissectionFactors, index: Int64[Tensor, "b"], new: DissectionFactors) -> None:
    """Overwrite the factors of the matrices at `index`, in place."""
    for front, other in zip(factors.fronts, new.fronts, strict=True):
        for part, values in zip(front, other, strict=True):
            part[index] = values


def factor_numbers(plan: list[Group], unknowns: int) -> int:
    """Number of entries of the factors of one matrix."""
    cells = 0
    for group in plan:
        fronts, eliminated = group.eliminated.shape
        cells += fronts * eliminated * (eliminated + 2 * group.remaining.shape[1])
    return cells * unknowns**2
