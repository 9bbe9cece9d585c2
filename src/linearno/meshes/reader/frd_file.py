"""Read results of CalculiX, `.frd` files in text form. Axes: N nodes, E elements, C components."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linearno.core.errors import UserError

SUFFIX = ".frd"
ELEMENTS = {  # element type of CalculiX → VTK cell type and order of its nodes
    1: (12, range(8)),
    2: (13, range(6)),
    3: (10, range(4)),
    4: (25, [*range(12), *range(16, 20), *range(12, 16)]),
    5: (26, [*range(9), *range(12, 15), *range(9, 12)]),
    6: (24, range(10)),
    7: (5, range(3)),
    8: (22, range(6)),
    9: (9, range(4)),
    10: (23, range(8)),
    11: (3, range(2)),
    12: (21, range(3)),
}
NAMES = {"DISP": "displacement", "STRESS": "stress", "TOSTRAIN": "strain", "NDTEMP": "temperature"}
VALUE_WIDTH = 12  # characters of a number; numbers may touch each other


def read_frd(path: Path, frame: int | None) -> tuple[Any, list[float]]:
    """The mesh with the nodal fields of one time, as a PyVista grid, and all times."""
    import pyvista

    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    try:
        nodes, cells, kinds, steps = _read_blocks(lines)
    except (ValueError, IndexError, KeyError, StopIteration) as error:
        raise UserError(f"is damaged or truncated ({error})") from None
    if not nodes or not cells:
        raise UserError("holds no nodes or no elements; expected a .frd file in text form")
    numbers = {number: index for index, number in enumerate(nodes)}
    try:
        connectivity = [[len(cell), *(numbers[node] for node in cell)] for cell in cells]
    except KeyError as error:
        raise UserError(f"is damaged: an element has the unknown node {error}") from None
    grid = pyvista.UnstructuredGrid(
        np.concatenate(connectivity), np.array(kinds, dtype=np.uint8), np.array(list(nodes.values()))
    )
    times = sorted(steps)
    if not times:
        raise UserError("holds no results: its run has crashed, or wrote none")
    if frame is not None and frame >= len(times):
        raise UserError(f"holds {len(times)} frames, not {frame + 1}")
    for name, rows in steps[times[-1 if frame is None else frame]].items():
        width = max(len(row) for row in rows.values())
        values = np.full((len(nodes), width), np.nan)
        for node, row in rows.items():
            values[numbers[node], : len(row)] = row
        grid.point_data[name] = values[:, 0] if width == 1 else values
    _add_von_mises(grid)
    return grid, times


def _add_von_mises(grid: Any) -> None:
    """Add the von Mises stress to a stress xx, yy, zz, xy, yz, zx."""
    if "stress" not in grid.point_data or np.asarray(grid.point_data["stress"]).shape[1:] != (6,):
        return
    xx, yy, zz, *shear = np.asarray(grid.point_data["stress"]).T
    normal = (xx - yy) ** 2 + (yy - zz) ** 2 + (zz - xx) ** 2
    grid.point_data["von_mises"] = np.sqrt(normal / 2 + 3 * sum(part**2 for part in shear))


Rows = dict[int, list[float]]


def _read_blocks(
    lines: list[str],
) -> tuple[dict[int, list[float]], list[list[int]], list[int], dict[float, dict[str, Rows]]]:
    """Nodes by number, corners and VTK types of the elements, results by time and name."""
    nodes: dict[int, list[float]] = {}
    cells: list[list[int]] = []
    kinds: list[int] = []
    steps: dict[float, dict[str, Rows]] = {}
    source, time = iter(lines), 0.0
    for line in source:
        head = line[:6].strip()
        if head.startswith("2C"):
            nodes = dict(_rows(source))
        elif head.startswith("3C"):
            cells, kinds = _read_elements(source)
        elif line.strip().startswith("100C"):
            time = float(line[12:24])
        elif line[:3] == " -4":
            name, rows = _read_result(line, source)
            steps.setdefault(time, {})[name] = rows
    return nodes, cells, kinds, steps


def _rows(source: Iterator[str]) -> Iterator[tuple[int, list[float]]]:
    """Numbers of each node, until the end of the block."""
    for line in source:
        if line[:3] == " -3":
            return
        if line[:3] in (" -1", " -2"):
            yield int(line[3:13]), _numbers(line[13:])
    raise ValueError("a block does not end")


def _numbers(text: str) -> list[float]:
    parts = (text[k : k + VALUE_WIDTH] for k in range(0, len(text.rstrip()), VALUE_WIDTH))
    return [float(part) for part in parts]


def _read_elements(source: Iterator[str]) -> tuple[list[list[int]], list[int]]:
    found: list[list[int]] = []
    types: list[int] = []
    for line in source:
        if line[:3] == " -3":
            break
        if line[:3] == " -1":
            types.append(int(line[13:18]))
            found.append([])
        elif line[:3] == " -2":
            found[-1] += [int(line[k : k + 10]) for k in range(3, len(line.rstrip()), 10)]
    else:
        raise ValueError("a block does not end")
    if unknown := set(types) - set(ELEMENTS):
        raise UserError(f"holds elements of the unknown type {unknown.pop()}")
    ordered = [[nodes[k] for k in ELEMENTS[kind][1]] for nodes, kind in zip(found, types, strict=True)]
    return ordered, [ELEMENTS[kind][0] for kind in types]


def _read_result(line: str, source: Iterator[str]) -> tuple[str, Rows]:
    """Name and nodal values of a result; components that CalculiX derives from others are left out."""
    name, given = line.split()[1], 0
    rows: Rows = {}
    for line in source:
        if line[:3] == " -5":
            given += "ALL" not in line.split()[1:2]
        elif line[:3] == " -1":
            rows[int(line[3:13])] = _numbers(line[13:])
        elif line[:3] == " -2":
            rows[next(reversed(rows))] += _numbers(line[13:])
        elif line[:3] == " -3":
            kept = {node: values[:given] for node, values in rows.items()}
            return NAMES.get(name, name), kept
    raise ValueError("a block does not end")
