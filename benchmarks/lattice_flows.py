"""Errors of the lattice Boltzmann method on flows with known solutions."""

from math import pi
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.special import j0

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.solids import cube_sphere
from linearno.cli.shared import DeviceOption, console
from linearno.core.device import resolve_device
from linearno.reproduce.records import new_record
from linearno.solvers.lattice_boltzmann import LatticeFlow
from linearno.solvers.lattice_walls import walls_from_distance
from linearno.solvers.surface_distance import ClosedSurface
from linearno.solvers.wind_tunnel import Tunnel, solve_wind_tunnel

PERIODIC = ("periodic",) * 6
BESSEL_ZERO = 2.404826
SPHERE_DRAG = 1.09  # at Reynolds number 100 in an infinite fluid


def lattice_flows(
    cells: Annotated[int, typer.Option(min=8, help="cells of the coarsest Taylor–Green vortex a side")] = 16,
    radius: Annotated[float, typer.Option(min=3, help="cells of the radius of the narrowest pipe")] = 4.3,
    diameters: Annotated[
        list[int] | None, typer.Option(help="cells of the sphere's diameter; may be repeated")
    ] = None,
    device: DeviceOption = "cpu",
    out: OutOption = None,
) -> None:
    """Measure the order on Taylor–Green vortices, decay rates in pipes, and the drag of a sphere at Re = 100.

    Example:

      python -m benchmarks lattice-flows --diameters 12 --out results
    """
    target = resolve_device(device)
    sides = [cells, 2 * cells, 4 * cells]
    vortices = [vortex_error(n, target) for n in sides]
    order = float(np.log2(vortices[-2] / vortices[-1]))
    console.print(f"Taylor–Green vortices, relative L2: {vortices}; order {order:.3f}")
    radii = [radius, 2 * radius, 4 * radius]
    pipes = [pipe_error(r, target) for r in radii]
    console.print(f"decay rate in a pipe, relative error: {pipes}")
    drags = {}
    for diameter in diameters or [8]:
        drags[str(diameter)] = sphere_drag(diameter, target)
        console.print(f"sphere of {diameter} cells, drag coefficient: {drags[str(diameter)]:.4f}")
    details = {
        "vortices": {"cells": sides, "relative_l2": vortices},
        "pipes": {"radius": radii, "rate_error": pipes},
        "sphere": {"reynolds": 100, "drag_by_cells": drags, "reference": SPHERE_DRAG, "channel_diameters": 8},
    }
    record = new_record("solver/lbm/verification", order, "order", device=target, details=details)
    keep_record(record, out)


def vortex_error(n: int, device: torch.device, viscosity: float = 0.02) -> float:
    """Relative L2 error of the velocity of decaying vortices, with a speed ∝ 1/n."""
    speed, rate = 0.8 / n, 2 * viscosity * (2 * pi / n) ** 2
    x = (torch.arange(n, dtype=torch.float64) + 0.5) * 2 * pi / n
    a, b = torch.meshgrid(x, x, indexing="ij")
    u, v = speed * a.cos() * b.sin(), -speed * a.sin() * b.cos()
    r = -0.75 * speed**2 * ((2 * a).cos() + (2 * b).cos())
    start = torch.stack([r, 0 * u, u, v])[:, None].expand(4, 4, n, n)
    flow = LatticeFlow((4, n, n), PERIODIC, viscosity=viscosity, initial=start, device=device)
    steps = round(0.5 / rate)
    flow.run(steps)
    exact = torch.stack([u, v])[:, None].expand(2, 4, n, n) * np.exp(-rate * steps)
    return float((flow.moments()[0, 2:].cpu() - exact).norm() / exact.norm())


def pipe_error(radius: float, device: torch.device, viscosity: float = 0.05) -> float:
    """Relative error of the decay rate ν (2.405/R)² of flow along a circular pipe."""
    n = int(2 * radius + 6)
    x = np.arange(-1, n + 1) + 0.5 - n / 2 + 0.137
    a, b = np.meshgrid(x, x, indexing="ij")
    distance = np.repeat((radius - np.hypot(a, b))[:, :, None], 6, axis=2)
    walls = walls_from_distance(distance, np.zeros((*distance.shape, 3)))
    start = torch.zeros(4, n, n, 4, dtype=torch.float64)
    profile = np.where(distance > 0, j0(BESSEL_ZERO * (radius - distance) / radius), 0)
    start[3] = 0.02 * torch.from_numpy(profile[1:-1, 1:-1, 1:-1])
    flow = LatticeFlow((n, n, 4), PERIODIC, walls=[walls], viscosity=viscosity, initial=start, device=device)
    fluid = torch.from_numpy(~walls.solid[1:-1, 1:-1, 1:-1]).to(device)
    rate = viscosity * (BESSEL_ZERO / radius) ** 2
    steps = int(0.5 / rate)
    flow.run(steps // 2)
    before = flow.moments()[0, 3][fluid].double().mean()
    flow.run(steps)
    after = flow.moments()[0, 3][fluid].double().mean()
    return abs(float(torch.log(before / after)) / steps / rate - 1)


def sphere_drag(diameter: int, device: torch.device) -> float:
    """Drag coefficient of a sphere at Reynolds number 100, in a channel of 8 diameters."""
    tunnel = Tunnel(
        spacing=1 / diameter, half_width=4.0, height=8.0, below=4.0, upstream=4.0, downstream=9.0,
        speed=1.0, viscosity=0.01, smagorinsky=0.0, slip=0.0, seconds=20.0, lattice_speed=0.06, sponge=1.0,
    )  # fmt: skip
    vertices, quads = cube_sphere(max(12, diameter), radius=0.5)
    drag = solve_wind_tunnel([ClosedSurface(vertices, quads, "sphere")], tunnel, device=device).drag[0]
    return float(drag[-len(drag) // 8 :].mean() / (0.5 * pi / 4))
