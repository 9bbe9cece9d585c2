"""A file opened as a mesh, whatever its format, and what is wrong with its shape."""

from pathlib import Path

import numpy as np
from numpy import ndarray

from . import array_files, vtk_files
from .geometry import Surface, axes_of, cell_dimension, coincident, thin_cells
from .ipc import Arrays, Refused, Words
from .mesh import Mesh, add_fields, check

ARRAYS = (".npz", ".h5", ".hdf5", ".csv")
ENDINGS = (*vtk_files.READERS, *ARRAYS)


def open_mesh(words: Words) -> Mesh:
    """The mesh of the file `path`. `beside`: a file with the surface of the case, where there is one."""
    path, ending = Path(words["path"]), Path(words["path"]).suffix.lower()
    if ending in vtk_files.READERS:
        return vtk_files.read_mesh(path)
    arrays, units = array_files.read_arrays(path)
    if ending == ".csv" and words["beside"] is not None:
        try:
            return array_files.mesh_of(arrays, units)
        except Refused:
            return _rows_of(vtk_files.read_mesh(Path(words["beside"])), arrays)
    return array_files.mesh_of(arrays, units)


def _rows_of(mesh: Mesh, arrays: Arrays) -> Mesh:
    """A table without coordinates: a row for each triangle of the surface beside it, or for each point."""
    rows = {len(values) for values in arrays.values()}
    into = {len(mesh.points): mesh.point, mesh.cell_count: mesh.cell}.get(next(iter(rows), 0))
    if len(rows) != 1 or into is None:
        raise Refused(
            f"has no columns x, y, z and {next(iter(rows), 0)} rows; the surface beside it has "
            f"{mesh.cell_count} triangles and {len(mesh.points)} points"
        )
    add_fields(mesh, into, arrays)
    return check(mesh)


def is_surface(mesh: Mesh) -> bool:
    """A mesh of faces in space, that is itself the surface of something."""
    return cell_dimension(mesh) == 2 and len(axes_of(mesh.points)) == 3


def faults_of(mesh: Mesh) -> dict[str, str]:
    """What is wrong with the shape of the mesh, by the word with which it may be tolerated."""
    if not len(mesh.points):
        return {"empty": "holds no points"}
    if not np.isfinite(mesh.points).all():
        return {"coordinates": "has points with NaN or infinite coordinates"}
    faults = {}
    if len(thin := thin_cells(mesh)):
        faults["degenerate"] = (
            f"{len(thin)} of {mesh.cell_count} cells have no length, area or volume: the first is {thin[0]}"
        )
    if len(same := coincident(mesh.points)):
        faults["duplicates"] = (
            f"{len(same)} of {len(mesh.points)} points lie where another one does: the first is {same[0]}"
        )
    return faults


def marks_on(mesh: Mesh, surface: Surface) -> ndarray:
    marks = np.zeros(len(mesh.points), dtype=bool)
    assert surface.origin is not None
    marks[surface.origin] = True
    return marks
