"""Compare the lattice Boltzmann solver with measured surface pressures of cars."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy import ndarray

from benchmarks.cli.shared import OutOption, keep_record
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.device import resolve_device
from linearno.core.errors import UserError, require
from linearno.reproduce.records import new_record
from linearno.solvers.surface_distance import ClosedSurface
from linearno.solvers.wind_tunnel import Tunnel, pressure_drag, solve_wind_tunnel

HOW = (
    "give a file with arrays points (S, V, 3), pressure (S, V) and quads (P, 4), or --quads with the last one"
)
CHANNEL = 5.25  # m


def lattice_cars(
    surfaces: Annotated[
        Path, typer.Argument(help=".npz with points (S, V, 3), pressure (S, V) and quads (P, 4)")
    ],
    quads: Annotated[
        Path | None, typer.Option(help=".npz with the quads, if they are in another file")
    ] = None,
    spacing: Annotated[float, typer.Option(min=0.01, help="size of a cell in metres")] = 0.0625,
    id: Annotated[str, typer.Option("--id", help="id of the record")] = "solver/lbm/cars",
    device: DeviceOption = "cpu",
    out: OutOption = None,
) -> None:
    """Correlation, relative L2 error and pressure drag against the surface pressures of other solutions.

    The channel is 5.25 m wide and high, or the next multiple of an even number of cells.

    Example:

      python -m benchmarks lattice-cars cars.npz --spacing 0.0625 --out results
    """
    with user_errors():
        points, pressure, polygons = read_cars(surfaces, quads)
        target = resolve_device(device)
        half = spacing * round(CHANNEL / 2 / spacing)
        tunnel = Tunnel(spacing=spacing, half_width=half, height=2 * half)
        rows = []
        for car, (vertices, reference) in enumerate(zip(points, pressure, strict=True)):
            surface = ClosedSurface(vertices, polygons, f"car {car}")
            start = time.perf_counter()
            flow = solve_wind_tunnel([surface], tunnel, device=target)
            seconds = time.perf_counter() - start
            row = compare(surface, flow.surface_pressure(0, surface), reference)
            quarter = flow.drag.shape[1] // 4
            last, before = flow.drag[0, -quarter:], flow.drag[0, -2 * quarter : -quarter]
            row |= {"drag_drift": float(last.mean() / before.mean() - 1)}
            row |= {"drag_rms": float(last.std() / last.mean()), "seconds": seconds}
            rows.append(row)
            console.print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
        details = {"spacing": spacing, "cells": tunnel.shape, "steps": tunnel.steps, "rows": rows}
        mean = float(np.mean([row["relative_l2"] for row in rows]))
        keep_record(new_record(id, mean, "relative L2", device=target, details=details), out)


def read_cars(surfaces: Path, quads: Path | None) -> tuple[ndarray, ndarray, ndarray]:
    """Points, pressures and polygons of the files."""
    found: dict[str, ndarray] = {}
    for path in (surfaces, quads):
        if path is None:
            continue
        try:
            with np.load(require(path, how=HOW)) as arrays:
                found |= {name: arrays[name] for name in arrays.files}
        except (ValueError, OSError):
            raise UserError(f"{path} is no .npz file; {HOW}") from None
    if missing := {"points", "pressure", "quads"} - found.keys():
        raise UserError(f"{surfaces} has no array {sorted(missing)[0]}; {HOW}")
    return found["points"].astype(float), found["pressure"].astype(float), found["quads"]


def compare(surface: ClosedSurface, pressure: ndarray, reference: ndarray) -> dict[str, float]:
    """Errors of the pressure at the vertices and of the drag that it causes."""
    drag, expected = pressure_drag(surface, pressure), pressure_drag(surface, reference)
    slope, offset = np.polyfit(pressure, reference, 1)
    return {
        "correlation": float(np.corrcoef(pressure, reference)[0, 1]),
        "relative_l2": float(np.linalg.norm(pressure - reference) / np.linalg.norm(reference)),
        "drag": drag,
        "reference_drag": expected,
        "drag_error": drag / expected - 1,
        "slope": float(slope),
        "offset": float(offset),
    }
