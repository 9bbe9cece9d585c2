"""Steady Euler flow on structured grids, in batches, by an implicit march in pseudo-time.

Axes: B samples, I × J nodes, H steps of history. States and fluxes are float64. The matrix of an implicit
step is float32, which affects the rate of convergence but not the solution.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from linearno.core.errors import SampleError, UserError
from linearno.solvers.euler import (
    Grid,
    InnerFaces,
    Nodes,
    State,
    build_grid,
    conserved_jacobian,
    quad_areas,
    residual,
    residual_jacobian,
    wave_speeds,
)
from linearno.solvers.linalg.c_grid_elimination import SPRING, Factors, StencilBlocks, factorise, solve

Unchecked = Float[Tensor, "..."]  # user input, checked with a one-line error

TOLERANCE = 1e-6  # on the residual, relative to the first one
ROUNDING = 1e-12  # residual of a converged first state
STEPS_PER_MATRIX = 5
START_COURANT = (10.0, 30.0, 100.0)  # Courant numbers of the first matrices; then MarchSettings.courant
MAX_STEPS = 200  # per MarchSettings
HISTORY = 10  # steps that Anderson acceleration mixes
WARMUP_STEPS = 20  # before Anderson acceleration
RIDGE, TINY = 1e-13, 1e-300  # regularise nearly parallel steps


class MarchSettings(NamedTuple):
    """Settings of a march. Large steps converge fast for most flows, but not for some with strong shocks.

    Args:
        courant: Courant number.
        near: Anderson acceleration starts when the relative residual falls below this value,
        late: or after this number of steps.
        largest: largest relative change of density or pressure in a step.
    """

    courant: float
    near: float
    late: int
    largest: float


MARCH_SETTINGS = (
    MarchSettings(1000.0, 0.05, 60, 0.3),
    MarchSettings(300.0, 0.02, 120, 0.3),
    MarchSettings(1000.0, 0.05, 20, 0.1),
)


class SteadyFlow(NamedTuple):
    """Result of a march.

    Args:
        state: density, velocity and pressure.
        residual: relative to the first residual.
        steps: number of steps, over all settings.
    """

    state: State
    residual: Float64[Tensor, "B"]
    steps: Float64[Tensor, "B"]

    @property
    def converged(self) -> Bool[Tensor, "B"]:
        return self.residual <= TOLERANCE


def solve_euler(nodes: Unchecked, outside: Unchecked, *, cut: int = 0) -> SteadyFlow:
    """Solve  ∇·F(W) = 0  for a gas with γ = 1.4, starting from W = `outside` everywhere.

    Second order except at shocks. Each implicit step uses the matrix of the first-order scheme and a direct
    solver; Anderson acceleration mixes the steps.

    Args:
        nodes: (B, I, J, 2) with I odd, J to the right of I. The first line is a wall except for its first and
            last `cut` nodes, which are pairs of equal points.
        outside: density, velocity and pressure (B, 4, I, J) in any consistent units: initial state and
            far-field state.
        cut: number of pairs of nodes on the cut.
    """
    _require_input(nodes, outside, cut)
    units = _units(outside.double())
    flow = march(build_grid(nodes.double(), cut), outside.double() / units)
    flow = flow._replace(state=flow.state * units)
    if not flow.converged.all():
        first = int((~flow.converged).nonzero()[0])
        raise SampleError(
            first,
            f"the flow did not become steady in {len(MARCH_SETTINGS)} × {MAX_STEPS} steps: "
            f"{flow.residual[first]:.1e} of the first residual is left, expected {TOLERANCE:g}; "
            "give a smoother body or another grid",
        )
    return flow


def _units(state: State) -> Float64[Tensor, "B 4 1 1"]:
    """Units in which the mean density and pressure of a sample are 1."""
    density, pressure = state[:, ::3].mean(dim=(2, 3)).unbind(1)
    velocity = (pressure / density).sqrt()
    return torch.stack([density, velocity, velocity, pressure], dim=1)[..., None, None]


def march(grid: Grid, outside: State, concurrent: int | None = None) -> SteadyFlow:
    """March each flow until it is steady or has used all steps of all settings.

    Args:
        grid: cells of all flows.
        outside: far-field states.
        concurrent: number of flows that march concurrently; when one ends, the next starts. All by default.
            Results do not depend on the other flows.
    """
    count = len(outside)
    zeros = outside.new_zeros(count)
    result = SteadyFlow(outside.clone(), torch.full_like(zeros, torch.inf), zeros.clone())
    order = torch.arange(count, device=outside.device)
    started = min(concurrent or count, count)
    batch = _start(grid, outside, order[:started], torch.zeros_like(order[:started]), zeros[:started])
    while len(batch.index):
        batch = _take_steps(batch)
        for whole, part in zip(result, (batch.state, batch.residual, batch.total_steps), strict=True):
            whole[batch.index] = part
        finite = batch.state.isfinite().flatten(1).all(dim=1)
        keep = (batch.residual > TOLERANCE) & finite & (batch.step < MAX_STEPS)
        if not keep.all():
            retry = ~keep & ~(batch.residual <= TOLERANCE) & (batch.attempt + 1 < len(MARCH_SETTINGS))
            free = len(keep) - int(keep.sum()) - int(retry.sum())
            new, started = order[started : started + free], min(started + free, count)
            index = torch.cat([batch.index[retry], new])
            attempt = torch.cat([batch.attempt[retry] + 1, torch.zeros_like(new)])
            total_steps = torch.cat([batch.total_steps[retry], zeros[: len(new)]])
            fresh = _start(grid, outside, index, attempt, total_steps)
            parts = {name: torch.cat([getattr(batch, name)[keep], getattr(fresh, name)]) for name in PER_FLOW}
            batch = MarchState(_select(grid, parts["index"]), **parts)
    return result


@dataclass(frozen=True)
class MarchState:
    """State of the concurrent flows, with the history of Anderson acceleration.

    Args:
        grid: cells of these flows.
        index: index of each flow among all flows.
        attempt: index of the flow's settings.
        step: number of steps with these settings.
        total_steps: number of steps with all settings.
        outside: far-field state.
        state: current state.
        flux: its residual.
        scale: norm of the first residual.
        residual: norm of `flux` over `scale`.
        state_changes: flattened differences of successive states.
        update_changes: flattened differences of successive updates.
        last_state: state of the last step.
        last_update: implicit update of the last step.
    """

    grid: Grid
    index: Int64[Tensor, "B"]
    attempt: Int64[Tensor, "B"]
    step: Int64[Tensor, "B"]
    total_steps: Float64[Tensor, "B"]
    outside: State
    state: State
    flux: State
    scale: Float64[Tensor, "B"]
    residual: Float64[Tensor, "B"]
    state_changes: Float64[Tensor, "B H n"]
    update_changes: Float64[Tensor, "B H n"]
    last_state: State
    last_update: State


PER_FLOW = [field.name for field in fields(MarchState) if field.name != "grid"]


def _start(
    grid: Grid,
    outside: State,
    index: Int64[Tensor, "b"],
    attempt: Int64[Tensor, "b"],
    total_steps: Float64[Tensor, "b"],
) -> MarchState:
    """Flows at `index` before the first step with the settings of `attempt`."""
    grid, outside = _select(grid, index), outside[index]
    flux = residual(grid, outside, outside)
    history = outside.new_zeros(len(index), HISTORY, outside.flatten(1).shape[1])
    scale = _norm(flux) + ROUNDING / TOLERANCE
    return MarchState(
        grid, index, attempt, torch.zeros_like(index), total_steps, outside, outside, flux, scale,
        _norm(flux) / scale, history, history.clone(), outside, torch.zeros_like(outside),
    )  # fmt: skip


def _take_steps(batch: MarchState) -> MarchState:
    """`STEPS_PER_MATRIX` steps with one matrix."""
    courant, near, late, largest = batch.state.new_tensor(MARCH_SETTINGS)[batch.attempt].unbind(1)
    start, matrix = batch.state.new_tensor(START_COURANT), batch.step // STEPS_PER_MATRIX
    courant = torch.where(matrix < len(start), start[matrix.clamp(max=len(start) - 1)], courant)
    factors = _factorise_step(batch, courant)
    accelerates = bool((batch.step + STEPS_PER_MATRIX > WARMUP_STEPS).any())
    for _ in range(STEPS_PER_MATRIX):
        update = -solve(factors, batch.flux.movedim(1, -1).float()).double().movedim(-1, 1).contiguous()
        batch = _remember(batch, update)
        if accelerates:
            ready = (batch.step >= WARMUP_STEPS) & ((batch.residual < near) | (batch.step >= late))
            update = torch.where(ready[:, None, None, None], _anderson_step(batch, update), update)
        batch = _advance(batch, update, largest)
    return batch


def _factorise_step(batch: MarchState, courant: Float64[Tensor, "B"]) -> Factors:
    """Factorise the matrix of an implicit step of the first-order scheme."""
    blocks = residual_jacobian(batch.grid, batch.state, batch.outside)
    inertia = wave_speeds(batch.grid, batch.state)[..., None, None] * conserved_jacobian(batch.state)
    blocks = blocks._replace(own=blocks.own + inertia / courant[:, None, None, None, None])
    single = StencilBlocks(*(part.float() for part in blocks))
    return factorise(single, (SPRING * inertia).float(), int(batch.grid.cut.sum()) // 2)


def _remember(batch: MarchState, update: State) -> MarchState:
    """Store the last step in the history."""
    rows, slot = torch.arange(len(update), device=update.device), batch.step % HISTORY
    has_last = (batch.step > 0)[:, None]
    batch.state_changes[rows, slot] = (batch.state - batch.last_state).flatten(1)
    batch.update_changes[rows, slot] = torch.where(has_last, (update - batch.last_update).flatten(1), 0.0)
    return replace(batch, last_state=batch.state, last_update=update)


def _anderson_step(batch: MarchState, update: State) -> State:
    """Anderson-accelerated step: to the solution of the linear model fitted to the history."""
    flat, size = update.flatten(1)[..., None], batch.update_changes.norm(dim=2, keepdim=True) + TINY
    updates, states = batch.update_changes / size, batch.state_changes / size
    ridge = RIDGE * torch.eye(HISTORY, dtype=updates.dtype, device=updates.device)
    weights = torch.linalg.solve_ex(updates @ updates.mT + ridge, updates @ flat)[0]
    return (flat - (states + updates).mT @ weights).view_as(update)


def _advance(batch: MarchState, update: State, largest: Float64[Tensor, "B"]) -> MarchState:
    """Add the update, scaled down if density or pressure would change too much; keep converged flows."""
    change = (update[:, ::3] / batch.state[:, ::3]).flatten(1).abs().amax(dim=1)
    share = (largest / change).clamp(max=1)
    active = batch.residual > TOLERANCE
    state = torch.where(
        active[:, None, None, None], batch.state + share[:, None, None, None] * update, batch.state
    )
    flux = residual(batch.grid, state, batch.outside)
    return replace(
        batch,
        state=state,
        flux=flux,
        residual=_norm(flux) / batch.scale,
        total_steps=batch.total_steps + active,
        step=batch.step + 1,
    )


def _norm(flux: State) -> Float64[Tensor, "B"]:
    return flux.flatten(1).norm(dim=1)


def _select(grid: Grid, index: Int64[Tensor, "b"]) -> Grid:
    """Grids of the flows at `index`."""
    along, across = (InnerFaces(*(part[index] for part in faces)) for faces in (grid.along, grid.across))
    ends = (grid.ends[0][index], grid.ends[1][index])
    return Grid(grid.cut, grid.volume[index], along, across, grid.wall[index], grid.far[index], ends)


def _require_input(nodes: Unchecked, outside: Unchecked, cut: int) -> None:
    fits = nodes.dim() == 4 and nodes.shape[-1] == 2 and nodes.shape[1] % 2 == 1
    if not fits or nodes.shape[1] < 5 or nodes.shape[2] < 3 or 2 * cut > nodes.shape[1]:
        raise UserError(
            f"expected nodes (samples, n, m, 2) with an odd n from 5 and m from 3, of which 2 × {cut} are "
            f"paired, got {tuple(nodes.shape)}"
        )
    expected = (len(nodes), 4, *nodes.shape[1:3])
    if tuple(outside.shape) != expected or not (outside[:, ::3] > 0).all() or not outside.isfinite().all():
        raise UserError(
            f"expected finite density, velocity and pressure {expected}, density and pressure above zero, "
            f"got {tuple(outside.shape)}"
        )
    require_grid(nodes.double(), cut)


def crosses_itself(line: Float64[Tensor, "n 2"]) -> Bool[Tensor, ""]:
    """Whether two segments of a line cross: each separates the ends of the other."""
    start, direction = line[:-1], line.diff(dim=0)
    to_ends = line[None] - start[:, None]  # from the start of each segment
    side = (direction[:, None, 0] * to_ends[..., 1] - direction[:, None, 1] * to_ends[..., 0]).sign()
    across = side[:, :-1] * side[:, 1:] < 0
    return (across & across.mT).any()


def require_grid(nodes: Nodes, cut: int) -> None:
    """Raise for inverted quads, a wall that crosses itself, or pairs of nodes at different points."""
    finite = nodes.isfinite().flatten(1).all(dim=1)
    first = max(cut - 1, 0)
    crossed = torch.stack([crosses_itself(line) for line in nodes[:, first : nodes.shape[1] - first, 0]])
    folded = (quad_areas(nodes) <= 0).flatten(1).any(dim=1)
    unequal = (nodes[:, :cut, 0] != nodes[:, nodes.shape[1] - cut :, 0].flip(1)).flatten(1).any(dim=1)
    for wrong, message in (
        (~finite, "expected finite nodes, got NaN or infinity"),
        (
            folded,
            "the grid folds over itself; expected quads of positive area, J axis to the right of the I axis",
        ),
        (crossed, "the wall crosses itself; expected a body whose outline has no crossing"),
        (unequal, f"the first and last {cut} nodes of the first line are not the same points"),
    ):
        if wrong.any():
            raise SampleError(int(wrong.nonzero()[0]), message)
