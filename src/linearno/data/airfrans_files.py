"""Files of AirfRANS: simulations read from the original download, and a compact copy of what was read.

Axes: N nodes, Q quadrilaterals, W nodes of the wall.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Integer
from numpy import ndarray
from scipy.spatial import cKDTree

from linearno.core.atomic_io import folder_lock, read_json, sha256, writable_folder, write_bytes, write_json
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.data.airfrans_names import SUFFIXES
from linearno.data.generation.card import require_finite
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader.point_arrays import read_point_arrays
from linearno.meshes.reader_process import Reader, UnreadableCase, read_in_parallel

INDEX = "compact.json"
FORMAT = 1
RECORDED_SIMULATIONS = 64  # read between records of the compact copy
MAX_WALL_DISTANCE = 1e-6  # metres from a node without velocity to a point of the airfoil
FIELDS = ("U", "p", "nut", "implicit_distance")


class Simulation(NamedTuple):
    """A flow around an airfoil, in SI units.

    Args:
        nodes: positions.
        fields: velocity along x and y, pressure over density, turbulent viscosity.
        distance: from the airfoil.
        wall: nodes on the airfoil, of zero velocity.
        normals: unit normals away from the airfoil at these.
        quads: corners of the cells.
    """

    nodes: Float32[ndarray, "N 2"]
    fields: Float32[ndarray, "N 4"]
    distance: Float32[ndarray, "N"]
    wall: Integer[ndarray, "W"]
    normals: Float32[ndarray, "W 2"]
    quads: Integer[ndarray, "Q 4"]


def read_original(reader: Reader, folder: Path, name: str) -> Simulation:
    """Read NAME_internal.vtu and NAME_aerofoil.vtp in the folder NAME of `folder`.

    Nodes on the airfoil are those whose velocity along x is exactly zero, as in the code of AirfRANS.
    """
    mesh_file, airfoil_file = (folder / name / (name + suffix) for suffix in SUFFIXES[:2])
    mesh = reader.call(read_point_arrays, CaseFile(name, mesh_file), FIELDS)
    airfoil = reader.call(read_point_arrays, CaseFile(name, airfoil_file), ("Normals",))
    for path, found in ((mesh_file, mesh), (airfoil_file, airfoil)):
        require_finite(found.points[None], f"{path}: points", how="fetch it again")
        for array, values in found.arrays.items():
            _require_components(path, array, values)
    velocity, pressure, nut, implicit = (mesh.arrays[field].astype(np.float64) for field in FIELDS)
    wall = np.flatnonzero(velocity[:, 0] == 0)
    nodes = mesh.points[:, :2]
    matched = _match_wall(mesh_file, nodes[wall], airfoil_file, airfoil.points[:, :2])
    if np.isin(mesh.others, wall).any():
        raise UserError(f"{mesh_file}: cells on the airfoil have no four corners; expected quadrilaterals")
    return Simulation(
        nodes.astype(np.float32),
        np.column_stack([velocity[:, :2], pressure, nut]).astype(np.float32),
        -implicit.astype(np.float32),
        wall.astype(np.int32),
        -airfoil.arrays["Normals"][matched, :2].astype(np.float32),
        mesh.quads.astype(np.int32),
    )


def _require_components(path: Path, name: str, values: ndarray) -> None:
    shape = values.shape[1:]
    allowed = {(count,) for count in (2, 3)} if name in ("U", "Normals") else {()}
    if shape not in allowed:
        expected = "two or three components" if name in ("U", "Normals") else "one number"
        raise UserError(f"{path}: {name} has shape {values.shape}; expected {expected} at each point")
    require_finite(values[None], f"{path}: {name}", how="fetch it again")


def _match_wall(path: Path, wall: ndarray, airfoil_path: Path, airfoil: ndarray) -> Integer[ndarray, "W"]:
    """Index of the point of the airfoil at each node of the wall."""
    if not len(wall) or not len(airfoil):
        where = f"{path} has no nodes of zero velocity" if not len(wall) else f"{airfoil_path} has no points"
        raise UserError(f"{where}; expected those of an airfoil")
    distance, index = cKDTree(airfoil).query(wall)
    if (wrong := np.flatnonzero(distance > MAX_WALL_DISTANCE)).size:
        x, y = wall[wrong[0]]
        raise UserError(
            f"{path}: {len(wrong)} of {len(wall)} nodes of zero velocity match no point of "
            f"{airfoil_path.name}, the first at ({x:g}, {y:g}); expected mesh and airfoil of one simulation"
        )
    return index


def read_simulations(folder: Path, names: Sequence[str], cache: Path) -> list[Simulation]:
    """Simulations of the download in `folder`, in the order of `names`.

    Those read for the first time are copied to `cache` as float32 arrays, with the sha256 of the copy and of
    the files. A copy is used as long as the sizes and times of the files are the same.
    """
    index = _read_index(cache)
    todo = [name for name in names if not _is_current(index.get(name), folder, name, cache)]
    if todo:
        require_extra("pyvista", "mesh")
        with folder_lock(writable_folder(cache)):
            for start in range(0, len(todo), RECORDED_SIMULATIONS):
                records, unreadable = _copy(folder, todo[start : start + RECORDED_SIMULATIONS], cache)
                index |= records
                write_json(cache / INDEX, {"format": FORMAT, "simulations": index})
                if unreadable is not None:
                    raise UserError(unreadable.reason)
    return [_read_copy(cache, name, index[name]["sha256"]) for name in names]


def _copy(folder: Path, names: Sequence[str], cache: Path) -> tuple[dict[str, Any], UnreadableCase | None]:
    """Read simulations in parallel and write their copies; their records by name, and the first failure."""
    files = [CaseFile(name, folder / name / f"{name}{SUFFIXES[0]}") for name in names]
    results = read_in_parallel(partial(_copy_one, folder, cache), files)
    failures = [result for result in results if isinstance(result, UnreadableCase)]
    pairs = zip(names, results, strict=True)
    records = {name: result for name, result in pairs if not isinstance(result, UnreadableCase)}
    return records, failures[0] if failures else None


def _copy_one(folder: Path, cache: Path, reader: Reader, file: CaseFile) -> dict[str, Any]:
    buffer = BytesIO()
    np.savez(buffer, **read_original(reader, folder, file.name)._asdict())
    path = cache / f"{file.name}.npz"
    write_bytes(path, buffer.getvalue())
    sources = {
        source.name: {**_stamp(source), "sha256": sha256(source)} for source in _sources(folder, file.name)
    }
    return {"sha256": sha256(path), "files": sources}


def _sources(folder: Path, name: str) -> list[Path]:
    return [folder / name / (name + suffix) for suffix in SUFFIXES[:2]]


def _stamp(path: Path) -> dict[str, int]:
    stat = os.stat(path)
    return {"bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}


def _is_current(record: Mapping[str, Any] | None, folder: Path, name: str, cache: Path) -> bool:
    """Whether there is a copy of a simulation, made from the files as they are."""
    if record is None or not (cache / f"{name}.npz").exists():
        return False
    stamps = {path.name: _stamp(path) for path in _sources(folder, name)}
    return all(stamp.items() <= record["files"].get(file, {}).items() for file, stamp in stamps.items())


def _read_index(cache: Path) -> dict[str, Any]:
    path = cache / INDEX
    how = f"remove {cache}, a copy that the next call writes again"
    if not path.exists():
        return {}
    values = read_json(path, how=how)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise UserError(f"{path} is of another version; {how}")
    return values["simulations"]


def _read_copy(cache: Path, name: str, digest: str) -> Simulation:
    path = cache / f"{name}.npz"
    how = f"remove {cache}, a copy that the next call writes again"
    if sha256(path) != digest:
        raise UserError(f"{path} has changed since it was written; {how}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return Simulation(**{field: file[field] for field in Simulation._fields})
    except (KeyError, ValueError, OSError, BadZipFile):
        raise UserError(f"{path} is damaged; {how}") from None
