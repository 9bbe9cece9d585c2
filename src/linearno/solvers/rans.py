"""Steady turbulent flow around NACA airfoils: the Reynolds-averaged Navier–Stokes equations, in batches.

Incompressible flow by artificial compressibility on C-grids; k-ω SST or Spalart–Allmaras turbulence, fully
turbulent. Second order for the flow, first order for the convection of turbulence.

Axes: B airfoils, I × J cells of a C-grid, W cells on the wall.
"""

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from linearno.core.byte_sizes import free_memory
from linearno.core.errors import SampleError, UserError
from linearno.solvers.airfoil_grid import GridCells, airfoil_grid
from linearno.solvers.c_grid_cells import CellGrid, build_cells
from linearno.solvers.implicit_march import RAMP_START, MarchPlan, MarchResult, march
from linearno.solvers.incompressible import Stream, forces
from linearno.solvers.k_omega_sst import KOmegaSST, start_from_spalart_allmaras
from linearno.solvers.linalg.cell_dissection import factor_numbers, plan_dissection
from linearno.solvers.naca import (
    VISCOSITY,
    AirfoilCase,
    Sections,
    naca_sections,
    require_flow,
    sample_case,
    warn_outside_law,
)
from linearno.solvers.panel import panel_flow, panel_velocity
from linearno.solvers.spalart_allmaras import FREE_STREAM, VON_KARMAN, SpalartAllmaras
from linearno.solvers.turbulence import State, TurbulenceModel

__all__ = ["AirfoilCase", "AirfoilFlows", "GridCells", "airfoil_flows", "refined_nodes", "sample_case"]

ATTEMPTS = (MarchPlan(25, 90), MarchPlan(50, 200))
EXTRA_START_STEPS = 10  # of Spalart–Allmaras before k-ω SST, after the ramp
START_SHARE, MAX_START_LIFT = 0.9, 0.8  # circulation of the initial flow
VORTEX_SHARE, VORTEX_RANGE = 0.9, (-1.4, 1.6)  # first lift coefficient at the far field
MAX_START_SPEED = 3.0
LAYER = (0.002, 0.018)  # thickness of the initial boundary layer at both edges: at x = 0, and growth along x
FRICTION_SPEED = 0.04  # in the initial turbulence
MAX_CHUNK_BYTES = 1 << 29  # of a chunk on a CPU
WORKSPACE, FIELDS = 3, 800  # memory over that of the factors, and fields of float64
MODELS: dict[str, TurbulenceModel] = {"sst": KOmegaSST(), "sa": SpalartAllmaras()}

log = logging.getLogger(__name__)


class AirfoilFlows(NamedTuple):
    """Flows around airfoils.

    Args:
        nodes: corners of the cells in m, along from the lower outlet around the leading edge to the upper
            outlet, and outwards.
        velocity: of the cells in m/s.
        pressure: over density, in m²/s².
        nut: eddy viscosity in m²/s.
        lift: lift coefficient.
        drag: drag coefficient.
        pressure_drag: its part due to pressure.
        friction: friction coefficient of each cell on the wall, positive towards the upper trailing edge.
        residual: 2-norm of the residual of mass and momentum, for chord 1 and speed 1.
        steps: steps of the march, with those of earlier attempts.
        steady: whether the flow is steady. The fields of other flows are not solutions.
        wake: cells along each side of the wake; the wall is between.
    """

    nodes: Float64[Tensor, "B I+1 J+1 2"]
    velocity: Float64[Tensor, "B I J 2"]
    pressure: Float64[Tensor, "B I J"]
    nut: Float64[Tensor, "B I J"]
    lift: Float64[Tensor, "B"]
    drag: Float64[Tensor, "B"]
    pressure_drag: Float64[Tensor, "B"]
    friction: Float64[Tensor, "B W"]
    residual: Float64[Tensor, "B"]
    steps: Int64[Tensor, "B"]
    steady: Bool[Tensor, "B"]
    wake: int

    def require_steady(self) -> None:
        """Raise for the first flow that is not steady."""
        if not self.steady.all():
            index = int((~self.steady).nonzero()[0])
            finite = bool(self.residual[index].isfinite())
            what = "did not become steady" if finite else "diverged"
            raise SampleError(
                index,
                f"the flow {what} in {int(self.steps[index])} steps, residual "
                f"{float(self.residual[index]):.1e}; give a smaller angle of attack or another grid",
            )


def airfoil_flows(
    cases: Sequence[AirfoilCase],
    cells: GridCells,
    *,
    turbulence: str = "sst",
    device: str | torch.device = "cpu",
    concurrent: int | None = None,
    precision: torch.dtype = torch.float32,
) -> AirfoilFlows:
    """Steady flows around airfoils; those that are not found are marked (`AirfoilFlows.steady`).

    Angles above 6 degrees are approached in steps; a flow that does not become steady is tried again with
    more of them. Results do not depend on the other airfoils.

    Args:
        cases: airfoils and streams.
        cells: size of the grids.
        turbulence: sst, k-ω SST started from Spalart–Allmaras, or sa, Spalart–Allmaras alone.
        device: device that solves.
        concurrent: number of flows that march concurrently; by default what fits into memory.
        precision: type of the matrices.
    """
    if turbulence not in MODELS:
        raise UserError(f"unknown turbulence model {turbulence!r}; expected one of {', '.join(MODELS)}")
    if not cases:
        raise UserError("expected at least one airfoil, got none")
    require_flow(cases)
    warn_outside_law(cases)
    target = torch.device(device)
    nodes = _nodes(cases, cells, target, refinement=1)
    chunk = concurrent or _chunk_size(cells, target)
    order = np.argsort([abs(case.angle) for case in cases], kind="stable")  # ends of marches nearly coincide
    parts = []
    for start in range(0, len(order), chunk):
        index = order[start : start + chunk].tolist()
        part = [cases[i] for i in index]
        parts.append(_solve(part, nodes[index], cells.wake, turbulence, precision))
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(target)
    joined = {name: torch.cat([part[name] for part in parts])[back] for name in AirfoilFlows._fields[:-1]}
    return AirfoilFlows(wake=cells.wake, **joined)


def refined_nodes(
    cases: Sequence[AirfoilCase], cells: GridCells, refinement: int, *, device: str | torch.device = "cpu"
) -> Float64[Tensor, "B _ _ 2"]:
    """Nodes of the same grids at `refinement` times as many positions, r I + 1 along and r J + 1 outwards.

    Every r-th node is one of `AirfoilFlows.nodes` up to rounding; all others are on the same smooth map, and
    those on the wall on the airfoil.
    """
    require_flow(cases)
    return _nodes(cases, cells, torch.device(device), refinement)


def memory_per_flow(cells: GridCells) -> int:
    """Bytes that a flow needs while it marches, nearly."""
    along = 2 * (cells.wake + cells.side)
    plan = plan_dissection(along, cells.outward, cells.wake, torch.device("cpu"))
    return WORKSPACE * 4 * factor_numbers(plan, 4) + FIELDS * 8 * along * cells.outward


def _chunk_size(cells: GridCells, device: torch.device) -> int:
    free = free_memory(device) // 2
    return max(1, (free if device.type == "cuda" else min(free, MAX_CHUNK_BYTES)) // memory_per_flow(cells))


def _nodes(
    cases: Sequence[AirfoilCase], cells: GridCells, device: torch.device, refinement: int
) -> Float64[Tensor, "B _ _ 2"]:
    shapes = Sections(*(part.to(device) for part in naca_sections([case.digits for case in cases])))
    angle = torch.tensor([math.radians(case.angle) for case in cases], dtype=torch.float64, device=device)
    reynolds = torch.tensor([case.reynolds for case in cases], dtype=torch.float64, device=device)
    return airfoil_grid(shapes, angle, reynolds, cells, refinement=refinement)


class Start(NamedTuple):
    """Initial flows: cells, free stream, and the state for Spalart–Allmaras."""

    grid: CellGrid
    stream: Stream
    state: State


def initial_flows(
    nodes: Float64[Tensor, "B _ _ 2"],
    wake: int,
    angle: Float64[Tensor, "B"],
    viscosity: Float64[Tensor, "B"],
) -> Start:
    """Potential flow at the angle where the march starts, with a boundary layer of the power 1/7.

    Args:
        nodes: C-grids, with chord 1.
        wake: cells along each side of the wake.
        angle: angles of attack in radians.
        viscosity: 1/Re.
    """
    grid = build_cells(nodes, wake)
    wall = nodes[:, wake : nodes.shape[1] - wake, 0]
    start = angle.clamp(-RAMP_START, RAMP_START)
    potential = panel_flow(wall, start, share=START_SHARE, max_lift=MAX_START_LIFT)
    centres = grid.centre.flatten(1, 2)
    velocity = panel_velocity(potential, centres).view(grid.centre.shape).movedim(-1, 1)
    velocity = velocity * (MAX_START_SPEED / velocity.norm(dim=1, keepdim=True)).clamp(max=1)
    pressure = (1 - (velocity**2).sum(dim=1, keepdim=True)) / 2
    thickness = LAYER[0] + LAYER[1] * grid.centre[..., 0].clamp(0, 1)
    profile = (grid.distance / thickness).clamp(max=1) ** (1 / 7)
    layer = torch.exp(-((2 * grid.distance / thickness) ** 2))
    eddies = FREE_STREAM * viscosity[:, None, None] + VON_KARMAN * FRICTION_SPEED * grid.distance * layer
    lift = (VORTEX_SHARE * potential.lift).clamp(*VORTEX_RANGE)
    state = torch.cat([pressure, velocity * profile[:, None], eddies[:, None]], dim=1)
    return Start(grid, Stream(angle, viscosity, lift), state)


def _solve(
    cases: Sequence[AirfoilCase],
    nodes: Float64[Tensor, "B _ _ 2"],
    wake: int,
    turbulence: str,
    precision: torch.dtype,
) -> dict[str, Tensor]:
    """Fields of `AirfoilFlows` but the wake, in its units."""
    speed = nodes.new_tensor([case.speed for case in cases])
    angle = nodes.new_tensor([math.radians(case.angle) for case in cases])
    start = initial_flows(nodes, wake, angle, VISCOSITY / speed)
    model = MODELS[turbulence]
    result = _attempt(model, start, ATTEMPTS[0], precision)
    for plan in ATTEMPTS[1:]:
        again = (~result.steady).nonzero()[:, 0]
        if len(again):
            log.info("%d of %d flows not steady; marched again more slowly", len(again), len(cases))
            rest = Start(start.grid.select(again), start.stream.select(again), start.state[again])
            _replace(result, again, _attempt(model, rest, plan, precision))
    stream = start.stream._replace(lift=result.lift)
    eddy = model.eddy_viscosity(start.grid, stream, result.state)
    coefficients = forces(start.grid, stream, result.state[:, :3])
    scale = speed[:, None, None]
    return coefficients._asdict() | {
        "nodes": nodes,
        "velocity": result.state[:, 1:3].movedim(1, -1) * scale[..., None],
        "pressure": result.state[:, 0] * scale**2,
        "nut": eddy * scale,
        "residual": result.residual,
        "steps": result.steps,
        "steady": result.steady,
    }


def _attempt(model: TurbulenceModel, start: Start, plan: MarchPlan, precision: torch.dtype) -> MarchResult:
    """March with Spalart–Allmaras, and from its result with k-ω SST."""
    if not isinstance(model, KOmegaSST):
        return march(model, *start, plan, precision=precision)
    first = march(
        MODELS["sa"], *start, MarchPlan(plan.ramp, plan.ramp + EXTRA_START_STEPS), precision=precision
    )
    stream = start.stream._replace(lift=first.lift)
    state = start_from_spalart_allmaras(start.grid, stream, first.state)
    second = march(model, start.grid, stream, state, MarchPlan(0, plan.max_steps), precision=precision)
    return second._replace(steps=first.steps + second.steps)


def _replace(result: MarchResult, index: Int64[Tensor, "b"], new: MarchResult) -> None:
    """Overwrite the results at `index`, in place, and add up the steps."""
    steps = result.steps[index] + new.steps
    for whole, part in zip(result, new._replace(steps=steps), strict=True):
        whole[index] = part
