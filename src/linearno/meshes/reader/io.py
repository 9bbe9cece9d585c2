"""Open a case of any format as a mesh, and find faults of the mesh."""

import numpy as np

from linearno.core.errors import UserError
from linearno.meshes.reader import array_files, vtk_files
from linearno.meshes.reader.geometry import degenerate_cells, duplicate_points
from linearno.meshes.reader.mesh import Arrays, CaseFile, Mesh

SUFFIXES = (*vtk_files.SUFFIXES, *array_files.SUFFIXES)


def open_mesh(file: CaseFile) -> Mesh:
    """The mesh of a case, checked for consistency."""
    suffix = file.path.suffix.lower()
    if suffix in vtk_files.SUFFIXES:
        return vtk_files.read_mesh(file.path)
    arrays, units = array_files.read_arrays(file.path)
    try:
        return array_files.build_mesh(arrays, units)
    except UserError:
        if suffix != ".csv" or file.surface is None:
            raise
        return _add_table(vtk_files.read_mesh(file.surface), arrays)


def _add_table(mesh: Mesh, arrays: Arrays) -> Mesh:
    """Add the columns of a table to a surface mesh; one row per triangle or per point."""
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
    """Messages about faults of the mesh, by the name used in `tolerate`."""
    if not len(mesh.points):
        return {"empty": "holds no points"}
    if not np.isfinite(mesh.points).all():
        return {"coordinates": "has points with NaN or infinite coordinates"}
    faults = {}
    if len(cells := degenerate_cells(mesh)):
        faults["degenerate"] = (
            f"has {len(cells)} of {mesh.cell_count} cells without length, area or volume: the first is "
            f"{cells[0]}"
        )
    if len(points := duplicate_points(mesh.points)):
        faults["duplicates"] = (
            f"has {len(points)} of {len(mesh.points)} points at the coordinates of another one: "
            f"the first is {points[0]}"
        )
    return faults
