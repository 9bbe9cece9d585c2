"""Pictures and VTK files of the bodies of a ShapeNet-Car run.

Axes: S samples, N rows, V surface points (the last rows), P quadrilaterals, E hexahedra.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.core.atomic_io import write_atomically, write_bytes
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.data.shapenet_car import ShapeNetCarConfig, car_cells
from linearno.data.shapenet_car_metrics import PRESSURE, drag_coefficient, drag_spearman
from linearno.data.shapenet_car_points import CarCells
from linearno.inference.bundle import load
from linearno.initialization import open_splits
from linearno.report.cases import RANKS
from linearno.report.run_folder import Cases, read_run
from linearno.run_folder import open_run
from linearno.viz import png_bytes
from linearno.viz.bodies import Body, compare_bodies, draw_body, force_scatter, picture_table, slice_figure

VIEWS = ("front", "rear", "below")
SLICE_COLOURS = "tab20"


@dataclass(frozen=True)
class BodyCase:
    """One test car.

    Args:
        coords: positions (N, 3).
        truth: velocity and pressure (N, 4).
        predicted: prediction of them.
        cells: mesh of the surface and of the volume.
    """

    coords: Float[ndarray, "N 3"]
    truth: Float[ndarray, "N 4"]
    predicted: Float[ndarray, "N 4"]
    cells: CarCells

    @property
    def surface(self) -> slice:
        return slice(len(self.coords) - self.cells.surface, None)

    @property
    def body(self) -> Body:
        return Body(self.coords[self.surface], self.cells.quads, self.truth[self.surface, PRESSURE])


def write_bodies(folder: Path, out: Path) -> list[Path]:
    """Write pictures and VTK files of the best, median and worst test car, and a scatter plot of the drag.

    Args:
        folder: run folder of a recipe `shapenet-car/…`.
        out: folder for the files.
    """
    require_extra("pyvista", "mesh")
    config = open_run(folder)
    if not isinstance(config.data, ShapeNetCarConfig):
        raise UserError(f"{folder} is a run on {config.data.name}; expected one on shapenet-car")
    found = read_run(folder, folder.name).cases
    if found is None:
        raise UserError(f"{folder} contains no example cases; `linearno evaluate {folder}` writes them")
    cells = car_cells(config.data)
    written = []
    for rank, name in enumerate(RANKS):
        case = body_case(found, rank, cells)
        figures = {"pressure": compare_bodies(case.body, _pressure(case), unit="Pa", views=VIEWS)}
        figures["velocity"] = _velocity_figure(case)
        for what, figure in figures.items():
            written.append(_write(out / f"{name}-{what}.png", figure))
        written += [_write_surface(out / f"{name}.vtp", case), _write_volume(out / f"{name}.vtu", case)]
    if found.slices is not None:
        written.append(_write(out / "slices.png", _slices_figure(found, cells)))
    return [*written, _write(out / "drag.png", _drag_figure(folder, config.data))]


def body_case(found: Cases, rank: int, cells: CarCells) -> BodyCase:
    return BodyCase(found.coords[rank], found.targets[rank], found.predictions[rank], cells)


def median_pressure_figure(folder: Path) -> Figure | None:
    """Pressure on the median test car and its error; None for other runs and without pyvista."""
    config = open_run(folder)
    if not isinstance(config.data, ShapeNetCarConfig) or find_spec("pyvista") is None:
        return None
    if (found := read_run(folder, folder.name).cases) is None:
        return None
    case = body_case(found, RANKS.index("median"), car_cells(config.data))
    return compare_bodies(case.body, _pressure(case), unit="Pa", views=VIEWS[:1])


def _pressure(case: BodyCase) -> Float[ndarray, "V"]:
    return case.predicted[case.surface, PRESSURE]


def _write(path: Path, figure: Figure) -> Path:
    write_bytes(path, png_bytes(figure))
    return path


def _velocity_figure(case: BodyCase) -> Figure:
    """Speed along the flow in the plane x = 0."""
    off = slice(0, case.surface.start)
    truth, predicted = case.truth[off, 2], case.predicted[off, 2]
    fields = {"solver": truth, "model": predicted, "error": predicted - truth}
    return slice_figure(case.coords[off], fields, case.coords[case.surface], unit="v_z, m/s")


def _slices_figure(found: Cases, cells: CarCells) -> Figure:
    """Dominant slice at the surface points of the median car, for the heads of the first and last layer."""
    assert found.slices is not None
    maps, median = found.slices.phi_dominant, RANKS.index("median")
    points = found.coords[median][-cells.surface :]
    layers = dict.fromkeys((0, len(maps) - 1))
    heads = range(min(4, maps.shape[1]))
    limits = (0.0, float(found.slices.bound - 1))
    images = [
        [
            draw_body(
                Body(points, cells.quads, maps[layer, head, -cells.surface :].astype(float)),
                limits=limits,
                colours=SLICE_COLOURS,
                flat=True,
            )
            for head in heads
        ]
        for layer in layers
    ]
    return picture_table(images, [f"head {head + 1}" for head in heads], [f"layer {k + 1}" for k in layers])


def _drag_figure(folder: Path, config: ShapeNetCarConfig) -> Figure:
    test = open_splits(config).test
    predictions = load(folder).predict_data(test)
    batch = test.everything()
    truth, predicted = (
        drag_coefficient(values, batch).double().numpy() for values in (batch.targets, predictions.cpu())
    )
    correlation = drag_spearman(predictions.cpu(), test)
    return force_scatter(truth, predicted, name="C_D", correlation=correlation)


def _write_surface(path: Path, case: BodyCase) -> Path:
    """Surface with pressure, prediction and error."""
    import pyvista

    quads = case.cells.quads
    faces = np.concatenate([np.full((len(quads), 1), 4), quads], axis=1)
    mesh = pyvista.PolyData(case.coords[case.surface].astype(np.float32), faces.ravel())
    truth, predicted = case.truth[case.surface, PRESSURE], _pressure(case)
    mesh.point_data["pressure"] = truth
    mesh.point_data["pressure_predicted"] = predicted
    mesh.point_data["pressure_error"] = predicted - truth
    write_atomically(path, lambda temporary: _save(mesh, temporary, path.suffix))
    return path


def _write_volume(path: Path, case: BodyCase) -> Path:
    """Hexahedra with velocity, prediction and error."""
    import pyvista

    cells = {pyvista.CellType.HEXAHEDRON: case.cells.hexahedra}
    mesh = pyvista.UnstructuredGrid(cells, case.coords.astype(np.float32))
    truth, predicted = (np.nan_to_num(part[:, :PRESSURE]) for part in (case.truth, case.predicted))
    mesh.point_data["velocity"] = truth
    mesh.point_data["velocity_predicted"] = predicted
    mesh.point_data["velocity_error"] = predicted - truth
    write_atomically(path, lambda temporary: _save(mesh, temporary, path.suffix))
    return path


def _save(mesh: object, temporary: Path, suffix: str) -> None:
    """Save under a name with the right suffix, which selects the format, and rename."""
    named = temporary.with_name(temporary.name + suffix)
    mesh.save(named)  # type: ignore[attr-defined]
    named.replace(temporary)
