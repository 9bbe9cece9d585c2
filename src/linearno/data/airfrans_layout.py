"""Write simulations in the layout of AirfRANS: VTU and VTP files that its own package reads.

Axes: N nodes, Q quadrilaterals, W nodes of the wall, K points of a line.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from numpy import ndarray

from linearno.core.atomic_io import read_json, write_atomically, write_json
from linearno.data.airfrans_files import Simulation
from linearno.data.airfrans_names import MANIFEST, ORIGIN, SUFFIXES
from linearno.data.airfrans_sets import GeneratedFlows
from linearno.data.generation.card import CARD
from linearno.data.generation.workers import process_map

PLANE_Z = 0.5
MAX_SERIAL_SIMULATIONS = 20  # fewer are not worth starting worker processes
CHANNELS = {"U": slice(0, 2), "p": slice(2, 3), "nut": slice(3, 4)}


def write_layout(root: Path, folder: Path, nodes: int, *, workers: int, tick: Callable[[int], None]) -> int:
    """Write the generated set in `root` to `folder`; return the number of simulations.

    Args:
        root: folder of the arrays.
        folder: folder of the manifest; finished simulations in it are kept.
        nodes: least number of nodes of a simulation.
        workers: number of processes.
        tick: called with the number of simulations that exist since its last call.
    """
    flows = GeneratedFlows(root, nodes)
    names = [*flows.manifest["full_train"], *flows.manifest["full_test"]]
    todo = [name for name in names if not (folder / name / (name + SUFFIXES[1])).exists()]  # written last
    write = partial(_write_generated, root, nodes, folder)
    serial = workers == 1 or len(todo) <= MAX_SERIAL_SIMULATIONS
    tick(len(names) - len(todo))
    for _ in map(write, todo) if serial else process_map(write, todo, workers):
        tick(1)
    write_json(folder / MANIFEST, {key: list(each) for key, each in flows.manifest.items()})
    write_json(folder / ORIGIN, read_json(root / CARD, how="generate the set again"))
    return len(names)


def _write_generated(root: Path, nodes: int, folder: Path, name: str) -> None:
    flows = GeneratedFlows(root, nodes)
    (simulation,) = flows.read([name])
    write_simulation(folder, name, simulation, *flows.far_field(name))


def write_simulation(
    folder: Path,
    name: str,
    flow: Simulation,
    border: Float[ndarray, "K 2"],
    border_fields: Float[ndarray, "K 4"],
) -> None:
    """Write NAME_internal.vtu, NAME_freestream.vtp and NAME_aerofoil.vtp to `folder/NAME`.

    Args:
        folder: folder of the simulations.
        name: name of the simulation.
        flow: nodes of the wall are in a row around the airfoil.
        border: points of the far field, in a row.
        border_fields: fields there.
    """
    import pyvista

    cells = np.insert(flow.quads, 0, 4, axis=1).ravel()
    mesh = pyvista.UnstructuredGrid(
        cells, np.full(len(flow.quads), pyvista.CellType.QUAD), _in_space(flow.nodes)
    )
    _add_fields(mesh, flow.fields, flow.quads)
    mesh.point_data["implicit_distance"] = -flow.distance
    write_grid(folder / name / (name + SUFFIXES[0]), mesh)
    far = _polyline(border, closed=False)
    _add_fields(far, border_fields.astype(np.float32), _ends(len(border), closed=False))
    write_grid(folder / name / (name + SUFFIXES[2]), far)
    airfoil = _polyline(flow.nodes[flow.wall], closed=True)
    ends = _ends(len(flow.wall), closed=True)
    _add_fields(airfoil, flow.fields[flow.wall], ends)
    edges = flow.nodes[flow.wall][ends].astype(np.float64)
    x, y = (edges[:, 1] - edges[:, 0]).T
    length = np.hypot(x, y)
    airfoil.point_data["Normals"] = _in_space(-flow.normals, 0.0)
    airfoil.cell_data["Normals"] = _in_space(np.stack([y, -x], axis=1) / length[:, None], 0.0)
    airfoil.cell_data["Length"] = length
    write_grid(folder / name / (name + SUFFIXES[1]), airfoil)


def _in_space(points: Float[ndarray, "K 2"], third: float = PLANE_Z) -> Float[ndarray, "K 3"]:
    return np.pad(points, ((0, 0), (0, 1)), constant_values=third).astype(np.float32)


def _ends(count: int, *, closed: bool) -> Integer[ndarray, "_ 2"]:
    """Both ends of the edges of a polygon with `count` vertices."""
    start = np.arange(count if closed else count - 1)
    return np.stack([start, (start + 1) % count], axis=1)


def _polyline(points: Float[ndarray, "K 2"], *, closed: bool) -> Any:
    import pyvista

    lines = np.insert(_ends(len(points), closed=closed), 0, 2, axis=1).ravel()
    return pyvista.PolyData(_in_space(points), lines=lines)


def _add_fields(mesh: Any, fields: Float[ndarray, "N 4"], corners: Integer[ndarray, "Q _"]) -> None:
    """Add U, p and nut at the points, and their means in the cells."""
    for data, values in ((mesh.point_data, fields), (mesh.cell_data, fields[corners].mean(axis=1))):
        for name, part in CHANNELS.items():
            data[name] = _in_space(values[:, part], 0.0) if name == "U" else values[:, part.start].copy()


def write_grid(path: Path, mesh: Any) -> None:
    """Write a VTU or VTP file with zlib compression, as AirfRANS has them."""
    from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter, vtkXMLUnstructuredGridWriter

    def write(temporary: Path) -> None:
        writer = vtkXMLPolyDataWriter() if path.suffix == ".vtp" else vtkXMLUnstructuredGridWriter()
        writer.SetFileName(str(temporary))
        writer.SetInputData(mesh)
        if not writer.Write():
            raise OSError("VTK could not write it")

    write_atomically(path, write)
