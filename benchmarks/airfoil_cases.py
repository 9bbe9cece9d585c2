"""Compare flows of the RANS solver with NASA's, AirfRANS and NeuralFoil."""

import itertools
import re
import time
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import typer
from jaxtyping import Float
from numpy import ndarray
from scipy.interpolate import CubicSpline

from benchmarks.cli.shared import OutOption, SeedOption, keep_record
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.device import resolve_device
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.core.randomness import numpy_generator
from linearno.reproduce.records import new_record
from linearno.solvers.naca import VISCOSITY, contour, naca_sections
from linearno.solvers.rans import (
    AirfoilCase,
    AirfoilFlows,
    GridCells,
    airfoil_flows,
    sample_case,
)

Turbulence = Literal["sst", "sa"]
NASA_REYNOLDS, NASA_MACH = 6e6, 0.15
NASA = {  # turbmodels.larc.nasa.gov, NACA 0012, CFL3D on 897 × 257 points: lift, drag
    "sa": {0: (0.0, 0.00819), 10: (1.0909, 0.01231), 15: (1.5461, 0.02124)},
    "sst": {0: (0.0, 0.00809), 10: (1.0778, 0.01236), 15: (1.5068, 0.02219)},
}
SURFACE_NAME = re.compile(r"airFoil2D_SST_(.+)_aerofoil\.vtp")
COMPARED_X = (0.003, 0.995)  # without the edges, where a surface has few points
CONTOUR_POINTS = 20001
NEURALFOIL_POINTS = 200  # of an airfoil

GridsOption = Annotated[str, typer.Option(help="grids, cells along each side of the wake:airfoil:outwards")]
ModelsOption = Annotated[str, typer.Option(help="turbulence models: sst, sa or both")]


def naca0012(
    grids: GridsOption = "24:40:48,40:64:64,48:100:88",
    models: ModelsOption = "sa,sst",
    angles: Annotated[str, typer.Option(help="angles of attack: 0, 10, 15")] = "0,10,15",
    device: DeviceOption = "cpu",
    out: OutOption = None,
) -> None:
    """Compare lift and drag of NACA 0012 at Reynolds number 6e6 with NASA's values on several grids.

    NASA's lift at Mach 0.15 is divided by the Prandtl-Glauert factor. The record is written after each flow.

    Example:

      python -m benchmarks naca0012 --out results
    """
    with user_errors():
        _naca0012(_grids(grids), _models(models), _angles(angles), resolve_device(device), out)


def _naca0012(
    grids: list[GridCells],
    models: list[Turbulence],
    angles: list[int],
    device: torch.device,
    out: Path | None,
) -> None:
    rows: list[dict[str, Any]] = []
    correction = (1 - NASA_MACH**2) ** 0.5
    for cells, model, angle in itertools.product(grids, models, angles):
        case = AirfoilCase((0.0, 0.0, 12.0), NASA_REYNOLDS * VISCOSITY, float(angle))
        facts = _solve_case(case, cells, model, device).facts
        lift, drag = NASA[model][angle]
        rows.append(facts | {"angle": angle, "nasa_lift": lift * correction, "nasa_drag": drag})
        console.print(f"{model}, {angle}°, {facts['grid']}: {_coefficients(rows[-1])}")
        record = new_record(
            "solver/rans/naca0012",
            max(abs(row["drag"] / row["nasa_drag"] - 1) for row in rows if row["grid"] == facts["grid"]),
            "largest relative error of the drag on the last grid",
            device=device,
            details={"reynolds": NASA_REYNOLDS, "rows": rows},
        )
        keep_record(record, out)


def airfrans_surfaces(
    folder: Annotated[Path, typer.Argument(help="folder with airFoil2D_…_aerofoil.vtp files")],
    grids: GridsOption = "40:64:64",
    models: ModelsOption = "sst",
    device: DeviceOption = "cpu",
    out: OutOption = None,
) -> None:
    """Compare the pressure on the airfoils with surfaces of AirfRANS.

    Example:

      python -m benchmarks airfrans-surfaces Dataset --out results
    """
    with user_errors():
        require_extra("pyvista", "mesh")
        files = sorted(path for path in folder.glob("**/*_aerofoil.vtp") if SURFACE_NAME.fullmatch(path.name))
        if not files:
            raise UserError(f"{folder}: expected files airFoil2D_SST_…_aerofoil.vtp, found none")
        _airfrans_surfaces(files, _grids(grids), _models(models), resolve_device(device), out)


def _airfrans_surfaces(
    files: list[Path],
    grids: list[GridCells],
    models: list[Turbulence],
    device: torch.device,
    out: Path | None,
) -> None:
    rows: list[dict[str, Any]] = []
    for cells, model, path in itertools.product(grids, models, files):
        case = _case_of(path)
        solved = _solve_case(case, cells, model, device)
        facts = {"name": path.name.removesuffix("_aerofoil.vtp")} | _compare(path, case, solved.flow)
        rows.append(solved.facts | facts)
        console.print(
            f"{model}, {rows[-1]['grid']}, {facts['name']}: "
            f"Cp {100 * facts['relative_l2']:.2f} % (relative L2), "
            f"largest difference {facts['largest']:.3f}"
        )
    finest = rows[-1]["grid"], rows[-1]["model"]
    record = new_record(
        "solver/rans/airfrans_surfaces",
        max(row["relative_l2"] for row in rows if (row["grid"], row["model"]) == finest),
        "largest relative L2 of Cp with the last model on the last grid",
        device=device,
        details={"x": COMPARED_X, "rows": rows},
    )
    keep_record(record, out)


def random_airfoils(
    airfoils: Annotated[int, typer.Option(min=1, help="number of random airfoils")] = 20,
    grids: GridsOption = "24:40:48",
    models: ModelsOption = "sst",
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Compare lift and drag of random airfoils with NeuralFoil's, fully turbulent.

    Example:

      python -m benchmarks random-airfoils --airfoils 20 --out results
    """
    with user_errors():
        require_extra("neuralfoil", "dev")
        _random_airfoils(airfoils, _grids(grids)[-1], _models(models)[-1], resolve_device(device), seed, out)


def _random_airfoils(
    airfoils: int, cells: GridCells, model: Turbulence, device: torch.device, seed: int, out: Path | None
) -> None:
    rows: list[dict[str, Any]] = []
    for index in range(airfoils):
        case = sample_case(numpy_generator(seed, index))
        facts = _solve_case(case, cells, model, device).facts
        lift, drag, confidence = _neuralfoil(case)
        other = {"neuralfoil_lift": lift, "neuralfoil_drag": drag, "confidence": confidence}
        rows.append(case._asdict() | facts | other)
        console.print(
            f"{index}: NACA {case.digits} at {case.angle}°: C_L {facts['lift']:.4f} and {lift:.4f}, "
            f"C_D {facts['drag']:.5f} and {drag:.5f}, {facts['steps']} steps"
        )
        names = ("lift", "neuralfoil_lift", "drag", "neuralfoil_drag")
        ours, theirs, our_drag, their_drag = (np.array([row[name] for row in rows]) for name in names)
        details = {
            "airfoils": len(rows),
            "steady": sum(row["steady"] for row in rows),
            "median_drag_ratio": float(np.median(our_drag / their_drag)),
            "lift_correlation": float(np.corrcoef(ours, theirs)[0, 1]) if index else 1.0,
            "rows": rows,
        }
        record = new_record(
            "solver/rans/random_airfoils",
            float(np.abs(ours - theirs).mean()),
            "mean difference of the lift coefficient to NeuralFoil",
            device=device,
            seed=seed,
            details=details,
        )
        keep_record(record, out)


class _Solved(NamedTuple):
    flow: AirfoilFlows
    facts: dict[str, Any]


def _solve_case(case: AirfoilCase, cells: GridCells, model: Turbulence, device: torch.device) -> _Solved:
    start = time.perf_counter()
    flow = airfoil_flows([case], cells, turbulence=model, device=device)
    facts = {
        "grid": f"{2 * (cells.wake + cells.side)}×{cells.outward}",
        "model": model,
        "lift": float(flow.lift[0]),
        "drag": float(flow.drag[0]),
        "pressure_drag": float(flow.pressure_drag[0]),
        "steps": int(flow.steps[0]),
        "residual": float(flow.residual[0]),
        "steady": bool(flow.steady[0]),
        "seconds": time.perf_counter() - start,
    }
    return _Solved(flow, facts)


def _coefficients(row: dict[str, Any]) -> str:
    return (
        f"C_L {row['lift']:.4f} (NASA {row['nasa_lift']:.4f}), C_D {row['drag']:.5f} "
        f"(NASA {row['nasa_drag']:.5f}), {row['steps']} steps, {row['seconds']:.0f} s"
    )


def _grids(text: str) -> list[GridCells]:
    try:
        return [GridCells(*(int(size) for size in grid.split(":"))) for grid in text.split(",")]
    except (ValueError, TypeError):
        raise UserError(f"--grids {text!r}: expected wake:side:outward,… such as 24:40:48,40:64:64") from None


def _angles(text: str) -> list[int]:
    known = NASA["sa"]
    if not all(part in map(str, known) for part in text.split(",")):
        raise UserError(f"--angles {text!r}: expected some of {', '.join(map(str, known))}, with commas")
    return [int(part) for part in text.split(",")]


def _models(text: str) -> list[Turbulence]:
    names: dict[str, Turbulence] = {"sst": "sst", "sa": "sa"}
    try:
        return [names[name] for name in text.split(",")]
    except KeyError:
        raise UserError(f"--models {text!r}: expected sst, sa or sa,sst") from None


def _case_of(path: Path) -> AirfoilCase:
    """Case in the name of a file of AirfRANS."""
    match = SURFACE_NAME.fullmatch(path.name)
    assert match is not None
    speed, angle, *digits = (float(text) for text in match[1].split("_"))
    return AirfoilCase(tuple(digits), speed, angle)


def _compare(path: Path, case: AirfoilCase, flow: AirfoilFlows) -> dict[str, float]:
    """Difference in Cp at the points of a surface, and their distance to our airfoil."""
    import pyvista

    surface = pyvista.read(path)
    points = np.asarray(surface.points, dtype=np.float64)[:, :2]
    real = np.asarray(surface.point_data["p"], dtype=np.float64) / (case.speed**2 / 2)
    parameter = torch.linspace(-torch.pi, torch.pi, CONTOUR_POINTS, dtype=torch.float64)[None]
    line = contour(naca_sections([case.digits]), parameter)[0].numpy()
    length = np.append(0, np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1)))
    walls = flow.nodes[0, flow.wake : flow.nodes.shape[1] - flow.wake, 0].cpu().numpy()
    at_nodes, _ = _positions(walls, line, length)
    at_nodes[[0, -1]] = length[[0, -1]]
    pressure = flow.pressure[0, flow.wake : flow.pressure.shape[1] - flow.wake, 0].cpu().numpy()
    ours = CubicSpline((at_nodes[1:] + at_nodes[:-1]) / 2, pressure / (case.speed**2 / 2))
    positions, distance = _positions(points, line, length)
    inside = (points[:, 0] > COMPARED_X[0]) & (points[:, 0] < COMPARED_X[1])
    difference = (ours(positions) - real)[inside]
    return {
        "relative_l2": float(np.linalg.norm(difference) / np.linalg.norm(real[inside])),
        "rms": float(np.sqrt(np.mean(difference**2))),
        "largest": float(np.abs(difference).max()),
        "distance": float(distance.max()),
    }


def _positions(
    points: Float[ndarray, "n 2"], line: Float[ndarray, "m 2"], length: Float[ndarray, "m"]
) -> tuple[Float[ndarray, "n"], Float[ndarray, "n"]]:
    """Arc lengths of the feet of `points` on a dense line, and the distances."""
    nearest = np.array([np.linalg.norm(line - point, axis=1).argmin() for point in points])
    best, positions = np.full(len(points), np.inf), np.zeros(len(points))
    for first in (np.clip(nearest - 1, 0, len(line) - 2), np.clip(nearest, 0, len(line) - 2)):
        edge, to_point = line[first + 1] - line[first], points - line[first]
        share = np.clip((to_point * edge).sum(axis=1) / (edge * edge).sum(axis=1), 0, 1)
        distance = np.linalg.norm(to_point - share[:, None] * edge, axis=1)
        foot = length[first] + share * (length[first + 1] - length[first])
        positions, best = np.where(distance < best, foot, positions), np.minimum(distance, best)
    return positions, best


def _neuralfoil(case: AirfoilCase) -> tuple[float, float, float]:
    """Lift, drag and confidence of NeuralFoil with transition at the leading edge."""
    import neuralfoil

    parameter = torch.linspace(torch.pi, -torch.pi, NEURALFOIL_POINTS, dtype=torch.float64)[None]
    points = contour(naca_sections([case.digits]), parameter)[0].numpy()
    found = neuralfoil.get_aero_from_coordinates(
        points, alpha=case.angle, Re=case.reynolds, xtr_upper=0.0, xtr_lower=0.0
    )
    lift, drag, confidence = (float(np.ravel(found[name])[0]) for name in ("CL", "CD", "analysis_confidence"))
    return lift, drag, confidence
