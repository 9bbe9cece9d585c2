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
PLAIN_SUFFIXES = (".vtu", ".vtp", ".vtk", ".stl", ".npz", ".csv", ".h5")  # never with further files
FRAME_MARK = "@"  # between the name of a simulation and the number of a frame
UNIT = re.compile(r"^(.+?)\s*\[([^\[\]]+)\]\s*$")  # as in `p [Pa]`


@dataclass(frozen=True)
class CaseFile:
    """One simulation.

    Args:
        name: path relative to the folder of cases, without suffix.
        path: file of the case, or the folder of an OpenFOAM case.
        surface: the `.stl` file of the same name, if there is one.
        frame: number of the time to read; None: the last one.
    """

    name: str
    path: Path
    surface: Path | None = None
    frame: int | None = None

    @property
    def bytes(self) -> int:
        """Size of its files; of a file that refers to others, of all files in the folder of its name."""
        files = [self.path] if self.surface is None else [self.path, self.surface]
        beside = self.path.with_name(self.path.name.partition(".")[0])
        for folder in {self.path, beside} if self.path.suffix.lower() not in PLAIN_SUFFIXES else ():
            if folder.is_dir():
                files += [path for path in folder.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files if path.is_file())

    @property
    def simulation(self) -> str:
        """Name without that of the frame: frames of one simulation stay in one split."""
        return self.name if self.frame is None else self.name.rpartition(FRAME_MARK)[0]


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


class Lift(NamedTuple):
    """The way back from a mesh in a plane to the mesh in space that it was reduced from.

    Args:
        points: plane point (N3,) of each point in space.
        cells: plane cell (E3,) of each cell in space.
        thin: what was reduced, for messages, such as "one cell thick along z".
        plane: numbers of the axes of the plane.
        angles: angle (N3,) of each point of a wedge about its axis; None without one.
        axis: number of the axis of a wedge.
    """

    points: ndarray
    cells: ndarray
    thin: str
    plane: tuple[int, int]
    angles: ndarray | None = None
    axis: int = 0


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
        patches: faces of the named parts of the boundary, as corners among the points of the mesh.
        lift: the mesh in space that was reduced to this one in a plane, if one was.
        times: times of the frames in the file.
    """

    points: ndarray
    kind: str
    cells: Cells | None = None
    grid: Any = None
    fields: dict[str, Arrays] = field(default_factory=lambda: {"points": {}, "cells": {}, "case": {}})
    units: dict[str, str] = field(default_factory=dict)
    patches: dict[str, Cells] = field(default_factory=dict)
    lift: Lift | None = None
    times: list[float] = field(default_factory=list)

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
