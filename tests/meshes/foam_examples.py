"""Small OpenFOAM cases, as the solvers write them, and what `foamToVTK` makes of them."""

import json
from math import cos, radians, sin
from pathlib import Path

import numpy as np
import pytest

pyvista = pytest.importorskip("pyvista")

HEAD = "FoamFile\n{{\n    version 2.0;\n    format ascii;\n    class {kind};\n    object {name};\n}}\n"
THICKNESS = 0.1
PATCHES = {"inlet": "patch", "outlet": "patch", "walls": "wall", "frontAndBack": "empty"}


def fields(x, y, angle, speed):
    """Pressure and velocity of a made-up flow, smooth in both parameters."""
    bend = radians(angle)
    p = speed**2 * (np.sin(2 * x + bend) * np.cos(y) + 0.2 * bend * y)
    u = speed * (1 + 0.3 * np.sin(3 * y + bend)) * cos(bend)
    v = speed * (0.5 + 0.2 * x) * sin(bend)
    return p, np.stack([u, v, 0 * u], axis=1)


def write_foam_case(folder: Path, *, angle=3.0, speed=20.0, n=4, times=("100",), scale=1.0) -> Path:
    """An OpenFOAM case of n × n cells, one cell thick along z, with inlet, outlet, walls and frontAndBack."""
    ticks = scale * np.linspace(0, 1, n + 1)
    points = [(x, y, z) for z in (0.0, scale * THICKNESS) for y in ticks for x in ticks]

    def number(i, j, k):
        return k * (n + 1) ** 2 + j * (n + 1) + i

    inner, outer = [], {name: [] for name in PATCHES}
    for j in range(n):
        for i in range(n):
            cell = j * n + i
            right = [number(i + 1, j + b, c) for b, c in ((0, 0), (1, 0), (1, 1), (0, 1))]
            above = [number(i + b, j + 1, c) for b, c in ((0, 0), (0, 1), (1, 1), (1, 0))]
            if i < n - 1:
                inner.append((cell, cell + 1, right))
            if j < n - 1:
                inner.append((cell, cell + n, above))
            left = [number(0, j + b, c) for b, c in ((0, 0), (0, 1), (1, 1), (1, 0))]
            below = [number(i + b, 0, c) for b, c in ((0, 0), (1, 0), (1, 1), (0, 1))]
            ends = [("inlet", i == 0, left), ("outlet", i == n - 1, right)]
            ends += [("walls", j == 0, below), ("walls", j == n - 1, above)]
            corners = ((0, 0), (0, 1), (1, 1), (1, 0))
            ends.append(("frontAndBack", True, [number(i + a, j + b, 0) for a, b in corners]))
            ends.append(("frontAndBack", True, [number(i + b, j + a, 1) for a, b in corners]))
            for name, there, face in ends:
                if there:
                    outer[name].append((cell, face))
    inner.sort(key=lambda one: one[:2])
    mesh = folder / "constant/polyMesh"
    mesh.mkdir(parents=True)
    faces = [face for *_, face in inner] + [face for part in outer.values() for _, face in part]
    owners = [first for first, *_ in inner] + [cell for part in outer.values() for cell, _ in part]
    _write(mesh, "points", "vectorField", _list(f"({x:.9g} {y:.9g} {z:.9g})" for x, y, z in points))
    _write(mesh, "faces", "faceList", _list(f"4({' '.join(map(str, face))})" for face in faces))
    _write(mesh, "owner", "labelList", _list(map(str, owners)))
    _write(mesh, "neighbour", "labelList", _list(str(second) for _, second, _ in inner))
    start, parts = len(inner), []
    for name, part in outer.items():
        parts.append(f"{name}\n{{\n type {PATCHES[name]};\n nFaces {len(part)};\n startFace {start};\n}}")
        start += len(part)
    _write(mesh, "boundary", "polyBoundaryMesh", _list(parts))
    _write(folder / "system", "controlDict", "dictionary", "application simpleFoam;\nstartTime 0;\n")
    inflow = f"({speed * cos(radians(angle)):.9g} {speed * sin(radians(angle)):.9g} 0)"
    initial = (
        f"internalField uniform {inflow}; // m/s\nboundaryField {{ inlet {{ value $internalField; }} }}\n"
    )
    _write(folder / "0", "U", "volVectorField", f"dimensions [0 1 -1 0 0 0 0];\n{initial}")
    centres = (ticks[1:] + ticks[:-1]) / 2 / scale
    x, y = (part.ravel() for part in np.meshgrid(centres, centres))
    for time in times:
        p, velocity = fields(x, y, angle, speed * float(time) / float(times[-1]))
        _write(folder / time, "p", "volScalarField", _field("[0 2 -2 0 0 0 0]", "scalar", map(str, p)))
        vectors = (f"({a:.9g} {b:.9g} {c:.9g})" for a, b, c in velocity)
        _write(folder / time, "U", "volVectorField", _field("[0 1 -1 0 0 0 0]", "vector", vectors))
    return folder


def _write(folder, name, kind, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(HEAD.format(kind=kind, name=name) + text + "\n")


def _list(items):
    items = list(items)
    return f"{len(items)}\n(\n" + "\n".join(items) + "\n)\n"


def _field(dimensions, kind, values):
    patches = "".join(
        f"{name} {{ type {'empty' if name == 'frontAndBack' else 'zeroGradient'}; }}\n" for name in PATCHES
    )
    inside = f"internalField nonuniform List<{kind}> {_list(values)};\n"
    return f"dimensions {dimensions};\n{inside}boundaryField\n{{\n{patches}}}\n"


def slab(n=4, *, angle=3.0, speed=20.0, scale=1.0):
    """A grid of n × n cells, one cell thick along z, with p and U at points and in cells."""
    grid = pyvista.ImageData(
        dimensions=(n + 1, n + 1, 2), spacing=(scale / n, scale / n, scale * THICKNESS)
    ).cast_to_unstructured_grid()
    for data, points in ((grid.point_data, grid.points), (grid.cell_data, grid.cell_centers().points)):
        x, y, _ = np.asarray(points, float).T / scale
        data["p"], data["U"] = fields(x, y, angle, speed)
    return grid


def write_foam_output(folder: Path, name: str, *, without=(), **parameters) -> Path:
    """What `foamToVTK -latestTime` writes for a case: internal mesh, patches, .vtm and .vtm.series."""
    grid, time = slab(**parameters), f"{name}_100"
    (folder / time / "boundary").mkdir(parents=True)
    grid.save(folder / time / "internal.vtu")
    skin = grid.extract_surface(pass_pointid=False, pass_cellid=False, algorithm="dataset_surface")
    centres = np.asarray(skin.cell_centers().points)
    low, high = centres.min(axis=0), centres.max(axis=0)
    sides = {
        "inlet": np.isclose(centres[:, 0], low[0]),
        "outlet": np.isclose(centres[:, 0], high[0]),
        "walls": np.isclose(centres[:, 1], low[1]) | np.isclose(centres[:, 1], high[1]),
    }
    names = [side for side in sides if side not in without]
    for side in names:
        part = skin.extract_cells(np.flatnonzero(sides[side])).extract_surface(
            pass_pointid=False, pass_cellid=False, algorithm="dataset_surface"
        )
        part.save(folder / time / "boundary" / f"{side}.vtp")
    parts = "".join(f"<DataSet name='{side}' file='{time}/boundary/{side}.vtp' />" for side in names)
    (folder / f"{time}.vtm").write_text(
        "<?xml version='1.0'?><VTKFile type='vtkMultiBlockDataSet' version='1.0'><vtkMultiBlockDataSet>"
        f"<DataSet name='internal' file='{time}/internal.vtu' /><Block name='boundary'>{parts}</Block>"
        "</vtkMultiBlockDataSet></VTKFile>"
    )
    series = {"file-series-version": "1.0", "files": [{"name": f"{time}.vtm", "time": 100}]}
    (folder / f"{name}.vtm.series").write_text(json.dumps(series))
    return folder / f"{name}.vtm.series"
