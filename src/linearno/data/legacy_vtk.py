"""Legacy ASCII VTK files of unstructured grids: points, cells of one kind, and one point field.

Axes: N points, P cells, K corners of a cell, C components.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from linearno.core.atomic_io import write_atomically
from linearno.core.errors import UserError, require

HOW = "fetch the file again"
QUAD, HEXAHEDRON = 9, 12  # types of cells


class Grid(NamedTuple):
    """Contents of a file.

    Args:
        points: positions (N, 3).
        cells: corners (P, K) of each cell.
        values: point field (N, C), or (N,) for scalars; None if the file has none.
    """

    points: Float[ndarray, "N 3"]
    cells: Int[ndarray, "P K"]
    values: ndarray | None


def read_grid(path: Path) -> Grid:
    """Read a file with cells that all have the same number of corners."""
    text = require(path, how=HOW).read_bytes()
    if not text.strip():
        raise UserError(f"{path} is empty; {HOW}")
    if not text.startswith(b"# vtk DataFile") or b"ASCII" not in text[:400]:
        raise UserError(f"{path} is no ASCII VTK file; {HOW}")
    count, start = _section(text, b"POINTS", path)
    points = _numbers(text, start, 3 * count[0], np.float64, path).reshape(-1, 3).astype(np.float32)
    cells = _cells(text, path)
    if cells.size and (cells.min() < 0 or cells.max() >= len(points)):
        raise UserError(f"{path}: a cell has corner {cells.max()}, the file has {len(points)} points; {HOW}")
    return Grid(points, cells, _point_field(text, len(points), path))


def write_grid(path: Path, grid: Grid, kind: int, field: str) -> None:
    """Write a file that `read_grid` reads, with numbers that keep all digits of float32."""
    head = "# vtk DataFile Version 3.0\nvtk output\nASCII\nDATASET UNSTRUCTURED_GRID\n"
    count, corners = grid.cells.shape
    cells = np.concatenate([np.full((count, 1), corners), grid.cells], axis=1)
    parts = [head, f"POINTS {len(grid.points)} float\n", _text(grid.points, "%.9g")]
    parts += [
        f"CELLS {count} {cells.size}\n",
        _text(cells, "%d"),
        f"CELL_TYPES {count}\n",
        f"{kind}\n" * count,
    ]
    if grid.values is not None:
        scalars = grid.values.ndim == 1
        parts.append(f"POINT_DATA {len(grid.points)}\n")
        parts.append(
            f"SCALARS {field} float\nLOOKUP_TABLE default\n" if scalars else f"VECTORS {field} float\n"
        )
        parts.append(_text(grid.values.reshape(len(grid.points), -1), "%.9g"))

    def write(temporary: Path) -> None:
        temporary.write_text("".join(parts))

    write_atomically(path, write)


def _text(rows: ndarray, form: str) -> str:
    line = " ".join([form] * rows.shape[1])
    return "\n".join(line % tuple(row) for row in rows.tolist()) + "\n"


def _section(text: bytes, keyword: bytes, path: Path) -> tuple[list[int], int]:
    """Numbers in the line that begins with `keyword`, and the position after it."""
    at = text.find(b"\n" + keyword + b" ")
    end = text.find(b"\n", at + 1)
    if at < 0 or end < 0:
        raise UserError(f"{path} has no {keyword.decode()}; {HOW}")
    numbers = [int(word) for word in text[at:end].split() if word.isdigit()]
    if not numbers:
        raise UserError(f"{path}: {keyword.decode()} has no number; {HOW}")
    return numbers, end + 1


def _numbers(text: bytes, start: int, count: int, dtype: type, path: Path) -> ndarray:
    values: ndarray = np.zeros(0, dtype)
    if count:
        values = np.fromstring(text[start:], dtype=dtype, count=count, sep=" ")
    if len(values) != count:
        raise UserError(f"{path} is truncated: {len(values)} of {count} numbers; {HOW}")
    return values


def _cells(text: bytes, path: Path) -> Int[ndarray, "P K"]:
    """Corners of the cells, in the form of VTK 4 (sizes and corners) or of VTK 9 (offsets, connectivity)."""
    (count, size, *_), start = _section(text, b"CELLS", path)
    if text[start:].lstrip().startswith(b"OFFSETS"):
        corners = size // max(count - 1, 1)
        start = text.find(b"\n", text.find(b"CONNECTIVITY", start)) + 1
        return _numbers(text, start, size, np.int64, path).reshape(-1, corners)
    rows = _numbers(text, start, size, np.int64, path)
    if not count or size % count or (rows[:: size // count] != size // count - 1).any():
        raise UserError(f"{path} has cells of different kinds; {HOW}")
    return rows.reshape(count, -1)[:, 1:]


def _point_field(text: bytes, points: int, path: Path) -> ndarray | None:
    at = text.find(b"POINT_DATA")
    if at < 0:
        return None
    for keyword, components in ((b"\nVECTORS ", 3), (b"\nSCALARS ", 1)):
        start = text.find(keyword, at)
        if start < 0:
            continue
        start = text.find(b"\n", start + 1) + 1
        if text[start : start + 12] == b"LOOKUP_TABLE":
            start = text.find(b"\n", start) + 1
        values = _numbers(text, start, components * points, np.float64, path).astype(np.float32)
        return values.reshape(points, 3) if components == 3 else values
    return None
