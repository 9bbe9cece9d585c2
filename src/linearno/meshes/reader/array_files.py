"""Read and write files of plain arrays: `.npz`, `.h5` and `.csv`, one case each; no pickles or links.

points (N, 2 or 3), also called coords, or columns x, y, z     coordinates
cells (E, k), optional                                         point indices of the corners
any array with N or E rows                                     field at the points or in the cells
single number or short list                                    number of the whole case
"""

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import NUMERIC_KINDS, Arrays, Cells, Mesh, split_unit

SUFFIXES = (".npz", ".h5", ".hdf5", ".csv")
COORDINATES = ("points", "coords", "coordinates", "xyz", "pos")
AXES = ("x", "y", "z")
CELL_TYPES = {(2, 2): 3, (2, 3): 5, (2, 4): 9, (3, 2): 3, (3, 3): 5, (3, 4): 10, (3, 8): 12, (3, 6): 13}
MAX_CASE_NUMBERS = 64  # values in one array
COLUMN = re.compile(r"^(.*):(\d+)$")  # ParaView writes a vector as U:0, U:1, U:2


def read_arrays(path: Path) -> tuple[Arrays, dict[str, str]]:
    """All numeric arrays of the file, and their units if given."""
    try:
        return {".npz": _npz, ".csv": _csv}.get(path.suffix.lower(), _hdf5)(path)
    except (UserError, MemoryError, ImportError):
        raise
    except Exception as error:  # a damaged file makes these libraries raise almost anything
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"is truncated or holds no plain arrays ({reason})") from None


def build_mesh(arrays: Arrays, units: dict[str, str]) -> Mesh:
    """Build a mesh from arrays, by the names and shapes in the docstring of this module."""
    rest = dict(arrays)
    points, dimensions = take_points(rest)
    mesh = Mesh(points, "arrays", _cells(rest.pop("cells", None), dimensions))
    locations = {mesh.cell_count: "cells"} if mesh.cells is not None else {}
    locations[len(points)] = "points"
    for name, values in rest.items():
        if values.ndim and values.shape[0] in locations and values.size > 1:
            mesh.add_fields(locations[values.shape[0]], {name: values}, units)
        elif values.ndim < 2 and values.size <= MAX_CASE_NUMBERS:
            mesh.add_fields("case", {name: values.reshape(-1)}, units)
        else:
            cells = f", or {mesh.cell_count}, one for each cell" if mesh.cells else ""
            raise UserError(
                f"has {name} of shape {values.shape}: expected {len(points)} rows, one for each point{cells}"
            )
    mesh.require_consistent()
    return mesh


def take_points(arrays: Arrays) -> tuple[ndarray, int]:
    """Remove the coordinates from `arrays`; return them padded to (N, 3), and their number of dimensions."""
    for name in list(arrays):
        if name.lower() in COORDINATES:
            points = arrays.pop(name)
            if points.ndim != 2 or points.shape[1] not in (2, 3):
                raise UserError(f"has {name} of shape {points.shape}; expected (points, 2) or (points, 3)")
            given = points.shape[1]
            return np.pad(points.astype(float), ((0, 0), (0, 3 - given))), given
    columns = {split_unit(name)[0].lower(): name for name in arrays}
    axes = [columns[axis] for axis in AXES if axis in columns]
    if len(axes) < 2 or any(arrays[axis].shape != arrays[axes[0]].shape for axis in axes):
        raise UserError(
            f"has no coordinates; expected one of {', '.join(COORDINATES)} with shape (points, 2 or 3), or "
            f"x, y and z; it holds {', '.join(arrays) or 'nothing'}"
        )
    zeros = np.zeros(arrays[axes[0]].size)
    found = {axis: arrays.pop(columns[axis]).reshape(-1) for axis in AXES if axis in columns}
    return np.stack([found.get(axis, zeros).astype(float) for axis in AXES], axis=1), len(axes)


def _cells(corners: ndarray | None, dimensions: int) -> Cells | None:
    if corners is None:
        return None
    if (
        corners.ndim != 2
        or corners.dtype.kind not in "iu"
        or (dimensions, corners.shape[1]) not in CELL_TYPES
    ):
        raise UserError(
            f"has cells of shape {corners.shape} and type {corners.dtype}; expected numbers of points, "
            "(cells, k) with k = 3 (triangles), 4 (quads in 2-D, tetrahedra in 3-D), 6 (wedges) or 8 "
            "(hexahedra)"
        )
    count, each = corners.shape
    types = np.full(count, CELL_TYPES[dimensions, each], dtype=np.uint8)
    return Cells(types, corners.reshape(-1).astype(np.int64), np.arange(count + 1) * each)


def _npz(path: Path) -> tuple[Arrays, dict[str, str]]:
    with np.load(path, allow_pickle=False) as file:
        if not hasattr(file, "files"):
            raise ValueError("one array without a name")
        found = {name: np.asarray(file[name]) for name in file.files}
    return {name: values for name, values in found.items() if values.dtype.kind in NUMERIC_KINDS}, {}


def _hdf5(path: Path) -> tuple[Arrays, dict[str, str]]:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
        )
        short = [name.rpartition("/")[2] for name in found]
        names = {
            name: last if short.count(last) == 1 else name for name, last in zip(found, short, strict=True)
        }
        arrays, units = {}, {}
        for name, item in found.items():
            if item.is_virtual or item.external:
                raise UserError(f"refers to another file for {name}; expected plain arrays")
            if item.dtype.kind in NUMERIC_KINDS and item.shape is not None:
                arrays[names[name]] = item[()] if item.ndim else np.asarray(item[()])
                unit = item.attrs.get("units", item.attrs.get("unit"))
                if isinstance(unit, str | bytes):
                    units[names[name]] = unit if isinstance(unit, str) else unit.decode()
    return arrays, units


def _csv(path: Path) -> tuple[Arrays, dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        head = file.readline()
        mark = max(",;\t", key=head.count)
        names = [name.strip() for name in next(csv.reader([head], delimiter=mark), [])]
        table = np.loadtxt(file, delimiter=mark, ndmin=2, quotechar='"')
    if len(set(names)) != len(names) or not all(names) or (table.size and table.shape[1] != len(names)):
        raise ValueError(f"expected a first line with {table.shape[1] or 'some'} different names")
    columns = dict(zip(names, table.reshape(-1, len(names)).T, strict=True))
    return _vectors(columns), {}


def _vectors(columns: Arrays) -> Arrays:
    """Columns U:0, U:1, … as one array."""
    arrays: Arrays = {}
    for name, values in columns.items():
        found = COLUMN.match(name)
        if found is None or f"{found[1]}:0" not in columns:
            arrays[name] = values
        elif found[2] == "0":
            parts: list[ndarray] = []
            while (part := f"{found[1]}:{len(parts)}") in columns:
                parts.append(columns[part])
            arrays[found[1]] = np.stack(parts, axis=1)
    return arrays


def write_annotated(path: Path, out: Path, ending: str, added: Arrays, units: dict[str, str]) -> None:
    """Write the contents of `path` and the added arrays to `out`, in the format of `path`."""
    if ending == ".csv":
        arrays, _ = read_arrays(path)
        _write_csv(out, arrays | added)
    elif ending == ".npz":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        with out.open("wb") as target:
            np.savez_compressed(target, allow_pickle=False, **arrays | added)
    else:
        _append_hdf5(path, out, added, units)


def _append_hdf5(path: Path, out: Path, added: Arrays, units: dict[str, str]) -> None:
    import h5py

    shutil.copyfile(path, out)
    with h5py.File(out, "r+") as file:
        for name, values in added.items():
            if name in file:
                del file[name]
            file[name] = values
            if name in units:
                file[name].attrs["units"] = units[name]


def _write_csv(out: Path, arrays: Arrays) -> None:
    names, columns = [], []
    for name, values in arrays.items():
        parts = values.reshape(len(values), -1).T
        names += [name] if values.ndim == 1 else [f"{name}:{i}" for i in range(len(parts))]
        columns += list(parts)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
