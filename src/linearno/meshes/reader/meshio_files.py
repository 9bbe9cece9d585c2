"""Read meshes of other programs (Gmsh, Abaqus, Ansys, Nastran, Salome, SU2, XDMF) with meshio."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError

SUFFIXES = (".msh", ".inp", ".med", ".bdf", ".nas", ".fem", ".su2", ".xdmf", ".xmf", ".avs")
GROUP = "gmsh:physical"


def read_meshio(path: Path) -> tuple[Any, dict[str, Any]]:
    """The cells of highest dimension as a PyVista grid, and named groups of faces as patches."""
    import meshio
    import pyvista

    try:
        mesh = meshio.read(path)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # meshio ends the process on some errors
        known = isinstance(error, Exception) and str(error).strip()
        reason = " ".join(str(error).split())[:160] if known else "meshio cannot read it"
        raise UserError(f"is damaged, or not of its format ({reason})") from None
    dimensions = [_dimension(block.type) for block in mesh.cells]
    highest = max(dimensions, default=-1)
    if highest < 1:
        raise UserError("holds no cells")
    inner = [number for number, dimension in enumerate(dimensions) if dimension == highest]
    grid = pyvista.from_meshio(_part(meshio, mesh, inner))
    patches = {}
    for name, chosen in _groups(mesh, dimensions, highest - 1).items():
        patches[name] = pyvista.from_meshio(
            _part(meshio, mesh, list(chosen), chosen)
        ).cast_to_unstructured_grid()
    return grid.cast_to_unstructured_grid(), patches


def _dimension(kind: str) -> int:
    from meshio._mesh import topological_dimension

    return topological_dimension.get(kind, -1)


def _part(meshio: Any, mesh: Any, blocks: list[int], rows: dict[int, ndarray] | None = None) -> Any:
    """A mesh of some blocks, with all cells or the given rows of each; fields of whole blocks only."""
    kept = {number: slice(None) if rows is None else rows[number] for number in blocks}
    cells = [(mesh.cells[number].type, mesh.cells[number].data[index]) for number, index in kept.items()]
    fields = {} if rows else {name: [parts[i] for i in blocks] for name, parts in mesh.cell_data.items()}
    fields = {name: parts for name, parts in fields.items() if not name.startswith("gmsh:")}
    return meshio.Mesh(np.asarray(mesh.points), cells, point_data=mesh.point_data, cell_data=fields)


def _groups(mesh: Any, dimensions: list[int], wanted: int) -> dict[str, dict[int, ndarray]]:
    """Rows by block of each named group of cells of a dimension."""
    found: dict[str, dict[int, ndarray]] = {}

    def add(name: str, number: int, rows: ndarray) -> None:
        if dimensions[number] == wanted and len(rows):
            found.setdefault(name, {})[number] = rows

    for name, (tag, *_) in getattr(mesh, "field_data", {}).items():
        for number, tags in enumerate(mesh.cell_data.get(GROUP, [])):
            add(name, number, np.flatnonzero(np.asarray(tags) == tag))
    for name, parts in (mesh.cell_sets or {}).items():
        for number, rows in enumerate(parts):
            if rows is not None and not name.startswith("gmsh:"):
                add(name, number, np.asarray(rows, dtype=int))
    return found
