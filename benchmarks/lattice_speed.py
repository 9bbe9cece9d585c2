"""Cell updates per second of the lattice Boltzmann solver."""

import time
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.solids import cube_sphere
from linearno.cli.shared import DeviceOption, console
from linearno.core.device import resolve_device
from linearno.reproduce.records import new_record
from linearno.solvers.lattice_boltzmann import Backend, LatticeFlow
from linearno.solvers.surface_distance import ClosedSurface
from linearno.solvers.wind_tunnel import Tunnel, surface_walls

BYTES_PER_CELL = 2 * 19 * 4  # populations read and written by a step


def lattice_speed(
    flows: Annotated[int, typer.Option(min=1, help="flows solved at once")] = 24,
    steps: Annotated[int, typer.Option(min=1, help="timed steps")] = 200,
    spacing: Annotated[float, typer.Option(min=0.01, help="size of a cell in metres")] = 0.0625,
    backend: Annotated[str, typer.Option(help="kernel, plain or auto")] = "auto",
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Time steps of flows around spheres in the channel of the cars, walls and sides included.

    Example:

      python -m benchmarks lattice-speed --device cuda --out results
    """
    target = resolve_device(device)
    chosen: Backend = "kernel" if backend == "kernel" else "plain" if backend == "plain" else "auto"
    tunnel = Tunnel(spacing=spacing)
    vertices, quads = cube_sphere(24, radius=0.7)
    walls = surface_walls(ClosedSurface(vertices + np.array([0, 0.7, 0]), quads, "sphere"), tunnel)
    lattice = LatticeFlow(
        tunnel.shape, tunnel.sides, walls=[walls] * flows, viscosity=0.0025, smagorinsky=0.17, speed=0.15,
        sponge=32, device=target, backend=chosen,
    )  # fmt: skip
    lattice.run(20)  # compiles and captures
    seconds = timed(lattice, steps, target)
    x, y, z = tunnel.shape
    rate = flows * x * y * z * steps / seconds
    console.print(
        f"{rate / 1e9:.3g} billion cell updates a second, {rate * BYTES_PER_CELL / 1e12:.3g} TB/s, "
        f"{flows} flows of {x} × {y} × {z} cells"
    )
    details = {
        "flows": flows, "cells": tunnel.shape, "steps": steps, "seconds": seconds, "backend": chosen,
        "bytes_per_second": rate * BYTES_PER_CELL,
    }  # fmt: skip
    record = new_record("bench/lbm", rate / 1e9, "billion cell updates/s", device=target, details=details)
    keep_record(record, out)


def timed(lattice: LatticeFlow, steps: int, device: torch.device) -> float:
    """Seconds of `steps` steps."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    lattice.run(steps)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
