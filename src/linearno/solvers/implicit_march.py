"""Implicit march of viscous flows around airfoils to a steady state, in batches.

    (V/Δt + ∂R/∂q) Δq = -R(q)

with the matrix of the first-order scheme, solved directly, and local time steps. States and residuals are
float64. The matrix is float32, which affects the rate of convergence but not the solution. Factors are reused
near the end. The march of a flow does not depend on the other flows of its batch.

Axes: B flows, I × J cells, m unknowns of a cell, T steps.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from linearno.solvers.c_grid_cells import CellGrid
from linearno.solvers.incompressible import Stream, forces
from linearno.solvers.linalg.c_grid_elimination import StencilBlocks
from linearno.solvers.linalg.cell_dissection import (
    DissectionFactors,
    factorise_by_dissection,
    replace_factors,
    select_factors,
    solve_by_dissection,
)
from linearno.solvers.turbulence import (
    Field,
    Linearisation,
    LinearSystem,
    State,
    TurbulenceModel,
    with_neighbours,
)

RAMP_START = math.radians(6)  # larger angles are approached from here
FIXED_CIRCULATION_STEPS = 6  # steps before the circulation at the far field follows the lift
RESIDUAL_TOLERANCE = 1e-5  # 2-norm of the flow's residual
FORCE_TOLERANCE, FORCE_WINDOW = 0.002, 10  # steady: relative change of lift and drag over so many steps
LIFT_FLOOR = 0.05  # smaller lift coefficients may change as this one
ACCEPTED_CHANGE, ACCEPTED_WINDOW = 0.02, 30  # accepted after the last step
MAX_CHANGE = 1.0  # of pressure or velocity in a step
LEAST_SHARE = 0.3  # of an update that is no sign of trouble
RESIDUAL_JUMP = 3.0  # growth of the residual in a step that is one
SLOW_DOWN = 0.7  # of the Courant number in trouble
STEPS_PER_MATRIX = 5  # near the end of a march
TINY = 1e-12


class MarchPlan(NamedTuple):
    """Length of a march.

    Args:
        ramp: steps in which angles above 6 degrees are approached.
        max_steps: steps at most.
    """

    ramp: int
    max_steps: int


class MarchResult(NamedTuple):
    """Result of a march.

    Args:
        state: state at the end.
        lift: lift coefficient that sets the circulation at the far field.
        residual: 2-norm of the residual of mass and momentum; not finite for flows that diverged.
        steps: number of steps.
        steady: whether residual or forces fell below their tolerances.
    """

    state: State
    lift: Float64[Tensor, "B"]
    residual: Float64[Tensor, "B"]
    steps: Int64[Tensor, "B"]
    steady: Bool[Tensor, "B"]


class FactorisedSystem(NamedTuple):
    """Factorised matrix, with its unknowns and the scales of its rows and columns."""

    channels: slice
    precision: torch.dtype
    row: State
    column: State
    factors: DissectionFactors


@dataclass(frozen=True)
class MarchState:
    """Flows that still march.

    Args:
        index: index of each flow among all flows.
        grid: cells of these flows.
        stream: free stream at the final angle.
        state: current state.
        courant: Courant number.
        last_residual: residual of the last step.
        full_steps: steps since the Courant number reached its largest value.
        matrix_age: steps since the matrix was factorised.
        history: lift and drag coefficients of each step.
        systems: factorised matrices, if any.
    """

    index: Int64[Tensor, "B"]
    grid: CellGrid
    stream: Stream
    state: State
    courant: Float64[Tensor, "B"]
    last_residual: Float64[Tensor, "B"]
    full_steps: Int64[Tensor, "B"]
    matrix_age: Int64[Tensor, "B"]
    history: Float64[Tensor, "B T 2"]
    systems: list[FactorisedSystem]

    def select(self, keep: Int64[Tensor, "b"]) -> "MarchState":
        """Flows at `keep`."""
        return MarchState(
            self.index[keep],
            self.grid.select(keep),
            self.stream.select(keep),
            self.state[keep],
            self.courant[keep],
            self.last_residual[keep],
            self.full_steps[keep],
            self.matrix_age[keep],
            self.history[keep],
            [_select_system(system, keep) for system in self.systems],
        )


def march(
    model: TurbulenceModel,
    grid: CellGrid,
    stream: Stream,
    state: State,
    plan: MarchPlan,
    *,
    precision: torch.dtype = torch.float32,
) -> MarchResult:
    """March each flow until it is steady or has taken all steps.

    Args:
        model: equations.
        grid: cells.
        stream: free stream, with a first guess of the lift coefficient.
        state: initial state.
        plan: length of the march.
        precision: type of the matrix.
    """
    batch, device = len(state), state.device
    count = torch.zeros(batch, dtype=torch.int64, device=device)
    unknown = state.new_full((batch,), math.inf)
    result = MarchResult(state.clone(), stream.lift.clone(), unknown.clone(), count.clone(), count.bool())
    run = MarchState(
        torch.arange(batch, device=device), grid, stream, state,
        state.new_full((batch,), model.courant.start), unknown,
        count, count, state.new_zeros(batch, plan.max_steps + 1, 2), [],
    )  # fmt: skip
    for step in range(plan.max_steps + 1):
        run, ended = _step(model, run, plan, step, result, precision)
        if ended.any():
            keep = (~ended).nonzero()[:, 0]
            if not len(keep):
                break
            run = run.select(keep)
    return result


def _step(
    model: TurbulenceModel,
    run: MarchState,
    plan: MarchPlan,
    step: int,
    result: MarchResult,
    precision: torch.dtype,
) -> tuple[MarchState, Bool[Tensor, "B"]]:
    """Take a step, or record in `result` the flows that end before it."""
    ramp = torch.where(run.stream.angle.abs() > RAMP_START, plan.ramp, 0)
    stream = run.stream._replace(angle=_ramped(run.stream.angle, ramp, step))
    linear = model.linearise(run.grid, stream, run.state)
    residual = linear.residual[:, :3].flatten(1).norm(dim=1)
    lift, drag, *_ = forces(run.grid, stream, run.state[:, :3])
    run.history[:, step] = torch.stack([lift, drag], dim=1)
    if step >= FIXED_CIRCULATION_STEPS:
        run = replace(run, stream=run.stream._replace(lift=lift))
    steady = _is_steady(run, residual, ramp, step)
    ended = steady | ~residual.isfinite()
    if step == plan.max_steps:
        steady = steady | (_change(run.history, step, ACCEPTED_WINDOW) <= ACCEPTED_CHANGE).all(dim=1)
        ended = torch.ones_like(ended)
    _record(result, run, residual, steady & residual.isfinite(), step)
    if ended.all():
        return run, ended
    fresh = _needs_matrix(model, run, residual, step <= ramp)
    if run.systems:
        fresh &= ~ended
    run = _factorise(run, linear, fresh, precision)
    update = torch.cat([_solve(system, linear.residual) for system in run.systems], dim=1)
    return _advance(model, run, update, residual, fresh), ended


def _ramped(target: Tensor, ramp: Tensor, step: int) -> Tensor:
    start = target.clamp(-RAMP_START, RAMP_START)
    share = torch.where(ramp > step, step / ramp.clamp(min=1), 1.0)
    return start + (target - start) * share


def _change(history: Float64[Tensor, "B T 2"], step: int, window: int) -> Float64[Tensor, "B 2"]:
    """Relative change of lift and drag over the last steps."""
    if step < window:
        return torch.full_like(history[:, 0], math.inf)
    recent = history[:, step - window : step + 1]
    floor = history.new_tensor([LIFT_FLOOR, TINY])
    return (recent.amax(dim=1) - recent.amin(dim=1)) / torch.maximum(recent[:, -1].abs(), floor)


def _is_steady(run: MarchState, residual: Tensor, ramp: Tensor, step: int) -> Bool[Tensor, "B"]:
    forces_rest = (_change(run.history, step, FORCE_WINDOW) <= FORCE_TOLERANCE).all(dim=1)
    forces_rest &= (run.full_steps >= FORCE_WINDOW) & (step >= ramp + FORCE_WINDOW)
    return ((residual < RESIDUAL_TOLERANCE) & (step > ramp)) | forces_rest


def _record(result: MarchResult, run: MarchState, residual: Tensor, steady: Tensor, step: int) -> None:
    """Write the flows as they are now; later steps overwrite those that go on."""
    result.state[run.index], result.lift[run.index] = run.state, run.stream.lift
    result.residual[run.index], result.steady[run.index] = residual, steady
    result.steps[run.index] = step


def _needs_matrix(
    model: TurbulenceModel, run: MarchState, residual: Tensor, on_ramp: Tensor
) -> Bool[Tensor, "B"]:
    """Matrices are reused, for longer where the Courant number is at its largest and the residual falls."""
    calm = (residual < run.last_residual) & (run.courant >= model.courant.largest) & ~on_ramp
    age = torch.where(calm, STEPS_PER_MATRIX, model.first_steps_per_matrix)
    return (run.matrix_age >= age) | (not run.systems)


def _factorise(
    run: MarchState, linear: Linearisation, fresh: Bool[Tensor, "B"], precision: torch.dtype
) -> MarchState:
    """Factorise the matrices of the flows in `fresh`."""
    if not fresh.any():
        return run
    index, inertia = fresh.nonzero()[:, 0], linear.rate / run.courant[:, None, None]
    whole = len(index) == len(fresh)
    new = [
        _factorise_system(system, run.grid.wake, inertia, None if whole else index, precision)
        for system in linear.systems()
    ]
    if whole:
        return replace(run, systems=new)
    for old, part in zip(run.systems, new, strict=True):
        old.row[index], old.column[index] = part.row, part.column
        replace_factors(old.factors, index, part.factors)
    return run


def _factorise_system(
    system: LinearSystem,
    wake: int,
    inertia: Field,
    index: Int64[Tensor, "b"] | None,
    precision: torch.dtype,
) -> FactorisedSystem:
    """Scale rows and columns, and factorise."""
    blocks, column = system.blocks, system.scale
    if index is not None:
        blocks, column = StencilBlocks(*(block[index] for block in blocks)), column[index]
        inertia = inertia[index]
    diagonal = torch.arange(column.shape[1], device=column.device)
    blocks.own[:, diagonal, diagonal] += inertia[:, None]
    for block, scale in zip(blocks, with_neighbours(column), strict=True):
        block *= scale[:, None]
    row = 1 / blocks.own.abs().amax(dim=2)
    scaled = (block * row[:, :, None] for block in blocks)
    ordered = (block.to(precision).permute(0, 3, 4, 1, 2).contiguous() for block in scaled)
    return FactorisedSystem(
        system.channels, precision, row, column, factorise_by_dissection(StencilBlocks(*ordered), wake)
    )


def _select_system(system: FactorisedSystem, keep: Int64[Tensor, "b"]) -> FactorisedSystem:
    factors = select_factors(system.factors, keep)
    return FactorisedSystem(system.channels, system.precision, system.row[keep], system.column[keep], factors)


def _solve(system: FactorisedSystem, residual: State) -> Float64[Tensor, "B _ I J"]:
    right = -residual[:, system.channels] * system.row
    solution = solve_by_dissection(system.factors, right.movedim(1, -1).to(system.precision))
    return solution.movedim(-1, 1).to(residual.dtype) * system.column


def _advance(
    model: TurbulenceModel, run: MarchState, update: State, residual: Tensor, fresh: Bool[Tensor, "B"]
) -> MarchState:
    """Add the update, scaled down where it is large, and change the Courant number."""
    largest = update[:, :3].abs().amax(dim=(1, 2, 3))
    share = (MAX_CHANGE / largest.clamp(min=TINY)).clamp(max=1)
    good = (share > LEAST_SHARE) & (residual < RESIDUAL_JUMP * run.last_residual)
    law = model.courant
    grown = (run.courant * law.growth).clamp(max=law.largest)
    courant = torch.where(good, grown, (run.courant * SLOW_DOWN).clamp(min=law.start))
    return replace(
        run,
        state=model.limit(run.state, share[:, None, None, None] * update),
        courant=courant,
        last_residual=residual,
        full_steps=torch.where(courant >= law.largest, run.full_steps + 1, 0),
        matrix_age=torch.where(fresh, 1, run.matrix_age + 1),
    )
