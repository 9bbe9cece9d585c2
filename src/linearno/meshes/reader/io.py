"""Open a case of any format as a mesh, and find faults of the mesh."""

import numpy as np

from linearno.core.errors import UserError
from linearno.meshes.reader import array_files, block_files, frd_file, meshio_files, vtk_files
from linearno.meshes.reader.block_files import Blocks
from linearno.meshes.reader.geometry import degenerate_cells, duplicate_points
from linearno.meshes.reader.mesh import Arrays, CaseFile, Mesh
from linearno.meshes.reader.patches import patches_of
from linearno.meshes.reader.plane import reduce_to_plane

GRID_SUFFIXES = (*block_files.SUFFIXES, frd_file.SUFFIX, *meshio_files.SUFFIXES)
SUFFIXES = (*vtk_files.SUFFIXES, *array_files.SUFFIXES, *GRID_SUFFIXES)


def is_array_file(file: CaseFile) -> bool:
    return file.path.suffix.lower() in array_files.SUFFIXES


def read_blocks(file: CaseFile) -> Blocks:
    """The PyVista grid of a case with all fields, the patches of its boundary, and its times."""
    path, suffix = file.path, file.path.suffix.lower()
    if path.is_dir() or suffix in block_files.SUFFIXES:
        return block_files.read_blocks(file)
    if suffix == frd_file.SUFFIX:
        grid, times = frd_file.read_frd(path, file.frame)
        return Blocks(grid, {}, times)
    if suffix in meshio_files.SUFFIXES:
        grid, patches = meshio_files.read_meshio(path)
        return Blocks(grid, patches, [])
    return Blocks(vtk_files.read_grid(path), {}, [])


def open_mesh(file: CaseFile, *, plane: bool = True) -> Mesh:
    """The mesh of a case, checked for consistency; with `plane` reduced to its plane if it is thin."""
    mesh = _open_in_space(file)
    return reduce_to_plane(mesh) if plane else mesh


def _open_in_space(file: CaseFile) -> Mesh:
    suffix = file.path.suffix.lower()
    if not is_array_file(file):
        found = read_blocks(file)
        mesh = vtk_files.build_mesh(found.grid)
        mesh.patches, mesh.times = patches_of(mesh, found.patches), found.times
        return mesh
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
