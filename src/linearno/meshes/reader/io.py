"""Open a case as a mesh, whatever its format, and find faults of the mesh."""

import numpy as np

from linearno.core.errors import UserError
from linearno.meshes.reader import array_files, vtk_files
from linearno.meshes.reader.geometry import cells_without_size, repeated_points
from linearno.meshes.reader.mesh import Arrays, CaseFile, Mesh

SUFFIXES = (*vtk_files.SUFFIXES, *array_files.SUFFIXES)


def open_mesh(file: CaseFile) -> Mesh:
    """The mesh of a case, checked for consistency."""
    suffix = file.path.suffix.lower()
    if suffix in vtk_files.SUFFIXES:
        return vtk_files.read_mesh(file.path)
    arrays, units = array_files.read_arrays(file.path)
    try:
        return array_files.mesh_of(arrays, units)
    except UserError:
        if suffix != ".csv" or file.surface is None:
            raise
        return _with_rows(vtk_files.read_mesh(file.surface), arrays)


def _with_rows(mesh: Mesh, arrays: Arrays) -> Mesh:
    """A surface with the columns of a table: a row for each triangle, or for each point."""
    counts = {len(values) for values in arrays.values()}
    rows = next(iter(counts), 0)
    location = {len(mesh.points): "points", mesh.cell_count: "cells"}.get(rows)
    if len(counts) != 1 or location is None:
        raise UserError(
            f"has no columns x, y, z and {rows} rows; the .stl file of the same name has {mesh.cell_count} "
            f"triangles and {len(mesh.points)} points"
        )
    mesh.add_fields(location, arrays, {})
    mesh.require_consistent()
    return mesh


def faults_of(mesh: Mesh) -> dict[str, str]:
    """What is wrong with the shape of the mesh, by the name under which it may be tolerated."""
    if not len(mesh.points):
        return {"empty": "holds no points"}
    if not np.isfinite(mesh.points).all():
        return {"coordinates": "has points with NaN or infinite coordinates"}
    faults = {}
    if len(cells := cells_without_size(mesh)):
        faults["degenerate"] = (
            f"has {len(cells)} of {mesh.cell_count} cells without length, area or volume: the first is "
            f"{cells[0]}"
        )
    if len(points := repeated_points(mesh.points)):
        faults["duplicates"] = (
            f"has {len(points)} of {len(mesh.points)} points at the coordinates of another one: "
            f"the first is {points[0]}"
        )
    return faults
