"""A mesh in memory: points, cells, and fields on them. Axes: N points, E cells, L corners of all cells."""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .ipc import KINDS, Arrays, Refused

# number of corners of cells that have one, by VTK's number for the type
CORNERS = {1: 1, 3: 2, 5: 3, 8: 4, 9: 4, 10: 4, 11: 8, 12: 8, 13: 6, 14: 5, 15: 10, 16: 12}
CORNERS |= {21: 3, 22: 6, 23: 8, 24: 10, 25: 20, 26: 15, 27: 13, 28: 9, 29: 27, 30: 6, 31: 12, 32: 18, 33: 24}
CORNERS |= {34: 7, 35: 4, 37: 19}
VARIABLE = (2, 4, 6, 7, 36, 41, 42)  # types with any number of corners
HIGHER = range(68, 82)  # of any order
FLAT = 1e-6  # an extent below this share of the largest one is none
UNIT = re.compile(r"^(.+?)\s*\[([^\[\]]+)\]\s*$")  # as in `p [Pa]`


class Cells(NamedTuple):
    types: ndarray  # (E,)
    corners: ndarray  # (L,) numbers of points
    offsets: ndarray  # (E + 1,)

    @property
    def owner(self) -> ndarray:
        """(L,) the cell of each corner."""
        return np.repeat(np.arange(len(self.types)), np.diff(self.offsets))


def mean_over(values: ndarray, source: ndarray, to: ndarray, count: int) -> ndarray:
    """At each of `count` places the mean of the values (·, C) that are sent there: values[source] to `to`."""
    sums = np.stack([np.bincount(to, column[source], count) for column in values.T], axis=1)
    return sums / np.maximum(np.bincount(to, minlength=count), 1)[:, None]


@dataclass
class Mesh:
    """Fields are (N, C) or (N,), (E, C) or (E,), and numbers of the whole case."""

    points: ndarray  # (N, 3)
    kind: str
    point: Arrays = field(default_factory=dict)
    cell: Arrays = field(default_factory=dict)
    case: Arrays = field(default_factory=dict)
    cells: Cells | None = None
    units: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)  # name here → name in the file, where they differ
    grid: Any = None  # pyvista's, where VTK has read it

    @property
    def cell_count(self) -> int:
        return 0 if self.cells is None else len(self.cells.types)

    @property
    def centres(self) -> ndarray:
        """(E, 3): of each cell the mean of its corners."""
        assert self.cells is not None
        return mean_over(self.points, self.cells.corners, self.cells.owner, self.cell_count)

    def fields(self, location: str) -> Arrays:
        return self.point if location == "points" else self.cell

    def as_grid(self) -> Any:
        """The mesh as pyvista has it, to ask VTK about its shape."""
        import pyvista

        if self.grid is None:
            if self.cells is None:
                self.grid = pyvista.PolyData(np.asarray(self.points, dtype=float))
            else:
                types, corners, offsets = self.cells
                counts = np.diff(offsets)
                flat = np.insert(corners, offsets[:-1], counts)
                self.grid = pyvista.UnstructuredGrid(flat, types, np.asarray(self.points, dtype=float))
        if not isinstance(self.grid, pyvista.UnstructuredGrid):
            self.grid = self.grid.cast_to_unstructured_grid()
        return self.grid


def add_fields(mesh: Mesh, into: Arrays, found: dict[str, Any]) -> None:
    """Keep the arrays of numbers, under their names without a unit in brackets."""
    for raw, values in found.items():
        array = np.asarray(values)
        if array.dtype.kind not in KINDS or not raw:
            continue
        name, unit = split_unit(raw)
        if name in into:
            name, unit = raw, None
        into[name] = array
        if name != raw:
            mesh.written[name] = raw
        if unit:
            mesh.units.setdefault(name, unit)


def split_unit(name: str) -> tuple[str, str | None]:
    """`p [Pa]` → p, Pa."""
    found = UNIT.match(name)
    return (found[1], found[2].strip()) if found else (name, None)


def check(mesh: Mesh) -> Mesh:
    """What VTK takes for granted: cells are made of points that are there, fields have a value for each."""
    if mesh.cells is not None:
        _check_cells(mesh.cells, len(mesh.points))
    for fields, count, what in (
        (mesh.point, len(mesh.points), "points"),
        (mesh.cell, mesh.cell_count, "cells"),
    ):
        for name, values in fields.items():
            if values.ndim not in (1, 2) or len(values) != count:
                raise Refused(
                    f"{name} has shape {values.shape}, expected a row for each of the {count} {what}"
                )
    return mesh


def _check_cells(cells: Cells, points: int) -> None:
    types, corners, offsets = cells
    counts = np.diff(offsets)
    if len(offsets) != len(types) + 1 or offsets[0] != 0 or offsets[-1] != len(corners) or (counts < 1).any():
        raise Refused("the corners of its cells do not add up: the file is damaged")
    if len(corners) and (corners.min() < 0 or corners.max() >= points):
        raise Refused(f"a cell has a corner that is none of the {points} points: the file is damaged")
    for kind in np.unique(types).tolist():
        own = counts[types == kind]
        if kind in CORNERS and (own != CORNERS[kind]).any():
            raise Refused(f"a cell of type {kind} has {own[own != CORNERS[kind]][0]} corners: damaged")
        if kind not in CORNERS and kind not in VARIABLE and kind not in HIGHER:
            raise Refused(f"a cell of type {kind} is not known: the file is damaged, or made by a newer VTK")
