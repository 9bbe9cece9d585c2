"""Read and write files with VTK: `.vtu`, `.vtp`, `.vtk`, `.stl` and the grids `.vts`, `.vtr`, `.vti`."""

from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import Arrays, Cells, Mesh

WRITERS = {
    ".vtu": "vtkXMLUnstructuredGridWriter",
    ".vtp": "vtkXMLPolyDataWriter",
    ".vts": "vtkXMLStructuredGridWriter",
    ".vtr": "vtkXMLRectilinearGridWriter",
    ".vti": "vtkXMLImageDataWriter",
    ".vtk": "vtkDataSetWriter",
}
SUFFIXES = (*WRITERS, ".stl")
XML_SUFFIX = {
    "UnstructuredGrid": ".vtu",
    "PolyData": ".vtp",
    "StructuredGrid": ".vts",
    "RectilinearGrid": ".vtr",
    "ImageData": ".vti",
}
CASE_PREFIX = "case:"  # of the names of arrays that are numbers of the case
SENTINEL = "_end_of_file"
FIRST_HIGHER_ORDER = 68  # first VTK cell type with any number of corners
READ_ERRORS = (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError)


def read_grid(path: Path) -> Any:
    """Read a file as a PyVista grid with all fields; cached until `forget_grids` is called."""
    stat = path.stat()
    return _read_grid(path, stat.st_mtime_ns, stat.st_size)


def forget_grids() -> None:
    _read_grid.cache_clear()


@lru_cache(maxsize=2)  # a mesh and its surface; predictions are written to the cached mesh
def _read_grid(path: Path, modified: int, size: int) -> Any:
    import pyvista

    suffix = path.suffix.lower()
    try:
        with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
            reader = pyvista.get_reader(path)
            if suffix == ".vtk":
                _append_sentinel(reader.reader, path)
            grid = reader.read()
    except RuntimeError as error:
        reason = str(error).partition("): ")[2] or str(error)
        raise UserError(f"is damaged or not a {suffix} file ({' '.join(reason.split())[:160]})") from None
    if suffix == ".stl" and not _stl_is_complete(path):
        raise UserError("is damaged or not a .stl file (it ends too early)")
    if type(grid).__name__ not in XML_SUFFIX:
        raise UserError(f"holds a {type(grid).__name__}, expected a mesh")
    for fields in (grid.point_data, grid.cell_data, grid.field_data):
        fields.pop(SENTINEL, None)
    return grid


def _append_sentinel(reader: Any, path: Path) -> None:
    """Append a field, so that VTK reports truncated legacy text files instead of padding with 0."""
    with path.open("rb") as file:
        is_text = b"ASCII" in file.read(400).upper()
    if is_text:
        content = path.read_bytes() + f"\nFIELD {SENTINEL} 1\n{SENTINEL} 1 1 int\n0\n".encode()
        reader.ReadFromInputStringOn()
        reader.SetBinaryInputString(content, len(content))


def _stl_is_complete(path: Path) -> bool:
    """Whether the file is complete, by its length or its last line; VTK accepts truncated files."""
    content = path.read_bytes()
    triangles = int.from_bytes(content[80:84], "little")
    return len(content) == 84 + 50 * triangles or b"endsolid" in content[-200:]


def read_mesh(path: Path) -> Mesh:
    """Read a file as a mesh, checked for consistency, with its units."""
    return build_mesh(read_grid(path))


def build_mesh(grid: Any) -> Mesh:
    """A PyVista grid as a mesh, checked for consistency, with its units."""
    try:
        return _build_mesh(grid)
    except READ_ERRORS as error:
        raise UserError(f"is damaged ({error})") from None  # faults that VTK does not report


def _build_mesh(grid: Any) -> Mesh:
    if grid.n_points < 0 or grid.n_cells < 0:
        raise ValueError(f"{grid.n_points} points and {grid.n_cells} cells")
    shape = grid.copy(deep=False)
    shape.clear_data()
    mesh = Mesh(np.asarray(grid.points), type(grid).__name__, grid=shape)
    if grid.n_cells:
        whole = mesh.as_grid()
        offsets = whole.cell_offsets if hasattr(whole, "cell_offsets") else whole.offset  # before 0.49
        mesh.cells = Cells(*map(np.asarray, (whole.celltypes, whole.cell_connectivity, offsets)))
    located = {"points": grid.point_data, "cells": grid.cell_data, "case": grid.field_data}
    for location, fields in located.items():
        mesh.add_fields(location, dict(fields), _unit_labels(fields))
    mesh.require_consistent()
    if mesh.cells is not None:
        _require_cell_types(mesh.cells)
    return mesh


def _require_cell_types(cells: Cells) -> None:
    from vtkmodules.vtkCommonDataModel import vtkGenericCell

    counts = np.diff(cells.offsets)
    for kind in np.unique(cells.types).tolist():
        cell = vtkGenericCell.InstantiateCell(kind)
        if not kind or cell is None:
            raise UserError(f"has a cell of unknown type {kind}: it is damaged, or written by a newer VTK")
        corners = cell.GetNumberOfPoints() if kind < FIRST_HIGHER_ORDER else 0  # 0: any number
        found = counts[cells.types == kind]
        if corners and (found != corners).any():
            raise UserError(f"is damaged: a cell of type {kind} has {found[found != corners][0]} corners")


def _unit_labels(fields: Any) -> dict[str, str]:
    """Units stored as VTK labels of the arrays."""
    from vtkmodules.vtkCommonCore import vtkDataArray

    label, units = vtkDataArray.UNITS_LABEL(), {}
    for name in fields:
        array = fields.VTKObject.GetAbstractArray(name)
        if array is not None and array.HasInformation() and array.GetInformation().Has(label):
            units[name] = array.GetInformation().Get(label)
    return units


def write_grid(
    grid: Any, out: Path, suffix: str, location: str, arrays: Arrays, units: dict[str, str]
) -> None:
    """Write a PyVista grid with additional arrays to `out`, in the format of `suffix`.

    Args:
        grid: the mesh with its own fields.
        out: file to write.
        suffix: of the format.
        location: "points" or "cells".
        arrays: fields, and under names that begin with "case:" numbers of the case.
        units: unit of each field.
    """
    import pyvista
    from vtkmodules.vtkCommonCore import vtkDataArray

    grid = grid.copy(deep=False)
    native = XML_SUFFIX[type(grid).__name__]
    if suffix == ".vtu" != native:
        grid, native = grid.cast_to_unstructured_grid(), ".vtu"
    if suffix not in (".vtk", native):
        fit = ", ".join(dict.fromkeys([native, ".vtu", ".vtk"]))
        raise UserError(f"holds a {type(grid).__name__}, which a {suffix} file cannot; write one of {fit}")
    data = grid.point_data if location == "points" else grid.cell_data
    for name, values in arrays.items():
        if name.startswith(CASE_PREFIX):
            grid.field_data[name.removeprefix(CASE_PREFIX)] = np.atleast_1d(values)
            continue
        data.set_array(np.ascontiguousarray(values), name)
        if name in units:
            information = data.VTKObject.GetAbstractArray(name).GetInformation()
            information.Set(vtkDataArray.UNITS_LABEL(), units[name])
    module = "vtkIOLegacy" if suffix == ".vtk" else "vtkIOXML"
    writer = getattr(import_module(f"vtkmodules.{module}"), WRITERS[suffix])()
    writer.SetFileName(str(out))
    writer.SetInputData(grid)
    if suffix == ".vtk":
        writer.SetFileTypeToBinary()
    try:
        with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
            written = writer.Write()
    except RuntimeError:
        written = 0
    if not written or writer.GetErrorCode():
        raise OSError("the disk is full, or the folder cannot be written")
