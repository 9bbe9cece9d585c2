"""Mesh in memory: points, cells and fields. Axes: N points, E cells, L corners of all cells."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError

Arrays = dict[str, ndarray]

NUMERIC_KINDS = "fiub"  # of a dtype: floating point, signed, unsigned, boolean
UNIT = re.compile(r"^(.+?)\s*\[([^\[\]]+)\]\s*$")  # as in `p [Pa]`


@dataclass(frozen=True)
class CaseFile:
    """One simulation.

    Args:
        name: path relative to the folder of cases, without suffix.
        path: file of the case.
        surface: the `.stl` file of the same name, if there is one.
    """

    name: str
    path: Path
    surface: Path | None = None

    @property
    def bytes(self) -> int:
        """Size of its files."""
        files = [self.path] if self.surface is None else [self.path, self.surface]
        return sum(path.stat().st_size for path in files if path.is_file())


class Cells(NamedTuple):
    """Cells of a mesh.

    Args:
        types: VTK cell types (E,).
        corners: point indices of all corners (L,).
        offsets: first corner of each cell, and L, (E + 1,).
    """

    types: ndarray
    corners: ndarray
    offsets: ndarray

    @property
    def owner(self) -> ndarray:
        """Cell (L,) of each corner."""
        return np.repeat(np.arange(len(self.types)), np.diff(self.offsets))


@dataclass
class Mesh:
    """Points, cells and fields of one case.

    Args:
        points: coordinates (N, 3).
        kind: "arrays", or the name of the VTK data set.
        cells: cells; None for a point cloud.
        grid: PyVista grid of the mesh without fields, if VTK has read it.
        fields: arrays by location and name: (N,) or (N, C) at "points", (E,) or (E, C) in "cells", numbers
            of the whole "case".
        units: unit of each field.
    """

    points: ndarray
    kind: str
    cells: Cells | None = None
    grid: Any = None
    fields: dict[str, Arrays] = field(default_factory=lambda: {"points": {}, "cells": {}, "case": {}})
    units: dict[str, str] = field(default_factory=dict)

    @property
    def cell_count(self) -> int:
        return 0 if self.cells is None else len(self.cells.types)

    @property
    def centres(self) -> ndarray:
        """Mean (E, 3) of the corners of each cell."""
        assert self.cells is not None
        return mean_over(self.points, self.cells.corners, self.cells.owner, self.cell_count)

    def add_fields(self, location: str, arrays: Mapping[str, Any], units: Mapping[str, str]) -> None:
        """Add numeric arrays, with units from `units` or from names such as `p [Pa]`, which becomes p."""
        target = self.fields[location]
        for full_name, values in arrays.items():
            array = np.asarray(values)
            if array.dtype.kind not in NUMERIC_KINDS or not full_name:
                continue
            name, unit = split_unit(full_name)
            if name in target:
                name, unit = full_name, None
            target[name] = array
            if unit := units.get(full_name, unit):
                self.units.setdefault(name, unit)

    def as_grid(self) -> Any:
        """The mesh without fields as a `pyvista.UnstructuredGrid`."""
        import pyvista

        if self.grid is None:
            points = np.asarray(self.points, dtype=float)
            if self.cells is None:
                self.grid = pyvista.PolyData(points)
            else:
                types, corners, offsets = self.cells
                self.grid = pyvista.UnstructuredGrid(
                    np.insert(corners, offsets[:-1], np.diff(offsets)), types, points
                )
        if not isinstance(self.grid, pyvista.UnstructuredGrid):
            self.grid = self.grid.cast_to_unstructured_grid()
        return self.grid

    def require_consistent(self) -> None:
        """Raise for wrong point indices of cells and wrong numbers of rows of fields, unchecked by VTK."""
        if self.cells is not None:
            _, corners, offsets = self.cells
            ends = len(offsets) == self.cell_count + 1 and offsets[0] == 0 and offsets[-1] == len(corners)
            if not ends or (np.diff(offsets) < 1).any():
                raise UserError("is damaged: the corners of its cells do not add up")
            if len(corners) and (corners.min() < 0 or corners.max() >= len(self.points)):
                raise UserError(
                    f"is damaged: a cell has a corner that is none of the {len(self.points)} points"
                )
        for location, count in (("points", len(self.points)), ("cells", self.cell_count)):
            for name, values in self.fields[location].items():
                if values.ndim not in (1, 2) or len(values) != count:
                    raise UserError(
                        f"has a field {name} of shape {values.shape}, expected a row for each of the {count} "
                        f"{location}"
                    )


def split_unit(name: str) -> tuple[str, str | None]:
    """Split a name such as `p [Pa]` into p and Pa."""
    found = UNIT.match(name)
    return (found[1], found[2].strip()) if found else (name, None)


def mean_over(values: ndarray, source: ndarray, target: ndarray, count: int) -> ndarray:
    """Mean of `values[source]` (·, C) over the entries of each of `count` targets."""
    sums = np.stack([np.bincount(target, column[source], count) for column in values.T], axis=1)
    return sums / np.maximum(np.bincount(target, minlength=count), 1)[:, None]
