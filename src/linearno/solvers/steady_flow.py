"""Steady flow of a gas on structured grids, many at once: a march in pseudo-time to where nothing changes.

Axes: B samples, I × J nodes, H steps that are remembered. States and fluxes are float64; the matrix of an
implicit step, which decides how fast the march ends but not where, is float32.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from linearno.core.errors import SampleError, UserError
from linearno.solvers.c_grid_direct_solver import SPRING, Factors, factorise, solve
from linearno.solvers.euler import (
    Blocks,
    Grid,
    Nodes,
    Sides,
    State,
    blocks_of,
    conserved_by_state,
    grid_of,
    quad_areas,
    residual,
    wave_speeds,
)

Given = Float[Tensor, "..."]  # from a user, who gets a line about a wrong shape

TOLERANCE = 1e-6  # on what flows out of all cells, against that at the start
ROUNDING = 1e-12
ROUND = 5  # steps with one matrix
COURANT = (10.0, 30.0, 100.0)  # of the first rounds; then that of the pace
MAX_STEPS = 200
REMEMBERED = 10  # steps that are mixed
WARM = 20  # steps before that
RIDGE, TINY = 1e-13, 1e-300  # so that steps that are alike do no harm


class MarchSettings(NamedTuple):
    """How boldly to march: what ends most flows soon lets a few with strong shocks wander about."""

    courant: float
    near: float  # steps are mixed where less than this is left of the first residual,
    late: int  # and after so many steps in any case
    largest: float  # relative change of density or pressure in a step


MARCH_SETTINGS = (
    MarchSettings(1000.0, 0.05, 60, 0.3),
    MarchSettings(300.0, 0.02, 120, 0.3),
    MarchSettings(1000.0, 0.05, 20, 0.1),
)


class Steady(NamedTuple):
    """`state` is density, velocity and pressure; `reached` is what still flows out, against the start."""

    state: State
    reached: Float64[Tensor, "B"]
    steps: Float64[Tensor, "B"]


def solve_euler(nodes: Given, outside: Given, *, cut: int = 0) -> Steady:
    """Solve  ∇·F(W) = 0  for a gas with γ = 1.4 from W = `outside`, which stays so at the far field.

    `nodes` (B, I, J, 2) with an odd I, J to the right of I: the first line is a wall but for its first and
    last `cut` nodes, which are the same points. `outside` (B, 4, I, J) is density, velocity, pressure, in any
    consistent units. Second order but at shocks. Each step solves the linear system of a first-order scheme
    directly, and Anderson's method mixes the steps.
    """
    _require(nodes, outside, cut)
    units = _units(outside.double())
    found = march(grid_of(nodes.double(), cut), outside.double() / units)
    found = found._replace(state=found.state * units)
    if not is_solved(found).all():
        first = int((~is_solved(found)).nonzero()[0])
        raise SampleError(
            first,
            f"the flow did not become steady in {len(MARCH_SETTINGS)} × {MAX_STEPS} steps: "
            f"{found.reached[first]:.1e} of the first residual is left, expected {TOLERANCE:g}; "
            "give a smoother body or another grid",
        )
    return found


def _units(state: State) -> Float64[Tensor, "B 4 1 1"]:
    """In which density and pressure are about one."""
    density, pressure = state[:, ::3].mean(dim=(2, 3)).unbind(1)
    velocity = (pressure / density).sqrt()
    return torch.stack([density, velocity, velocity, pressure], dim=1)[..., None, None]


def is_solved(found: Steady) -> Bool[Tensor, "B"]:
    return found.reached <= TOLERANCE


def march(grid: Grid, outside: State, room: int | None = None) -> Steady:
    """Flows that are steady, or have had all their steps at each pace.

    So many are on their way at once, all by default: where one ends the next one begins. No flow depends on
    those beside it.
    """
    count = len(outside)
    none = outside.new_zeros(count)
    found = Steady(outside.clone(), torch.full_like(none, torch.inf), none.clone())
    everyone = torch.arange(count, device=outside.device)
    begun = min(room or count, count)
    going = _begin(grid, outside, everyone[:begun], torch.zeros_like(everyone[:begun]), none[:begun])
    while len(going.who):
        going = _round(going)
        for all_, some in zip(found, (going.state, going.reached, going.steps), strict=True):
            all_[going.who] = some
        finite = going.state.isfinite().flatten(1).all(dim=1)
        keep = (going.reached > TOLERANCE) & finite & (going.number < MAX_STEPS)
        if not keep.all():
            again = ~keep & ~(going.reached <= TOLERANCE) & (going.pace + 1 < len(MARCH_SETTINGS))
            left = len(keep) - int(keep.sum()) - int(again.sum())
            new, begun = everyone[begun : begun + left], min(begun + left, count)
            who = torch.cat([going.who[again], new])
            pace = torch.cat([going.pace[again] + 1, torch.zeros_like(new)])
            steps = torch.cat([going.steps[again], none[: len(new)]])
            going = _joined(grid, going, keep, _begin(grid, outside, who, pace, steps))
    return found


@dataclass(frozen=True)
class Going:
    """Flows on their way, and the last steps of each: where they were and where each step wanted to go."""

    grid: Grid
    who: Int64[Tensor, "B"]  # of all that are asked for
    pace: Int64[Tensor, "B"]
    number: Int64[Tensor, "B"]  # of the next step at that pace
    steps: Float64[Tensor, "B"]  # at all paces
    outside: State
    state: State
    flux: State
    scale: Float64[Tensor, "B"]  # of the first flux
    reached: Float64[Tensor, "B"]
    moves: Float64[Tensor, "B H n"]  # from each state to the next
    turns: Float64[Tensor, "B H n"]  # from each wish to the next
    before: State  # the state of the last step,
    wished: State  # and its wish


PER_FLOW = [field.name for field in fields(Going) if field.name != "grid"]


def _begin(
    grid: Grid, outside: State, who: Int64[Tensor, "b"], pace: Int64[Tensor, "b"], steps: Float64[Tensor, "b"]
) -> Going:
    """These of all flows, at their first step of a pace."""
    grid, outside = _some(grid, who), outside[who]
    flux = residual(grid, outside, outside)
    memory = outside.new_zeros(len(who), REMEMBERED, outside.flatten(1).shape[1])
    scale = _size(flux) + ROUNDING / TOLERANCE
    return Going(
        grid, who, pace, torch.zeros_like(who), steps, outside, outside, flux, scale, _size(flux) / scale,
        memory, memory.clone(), outside, torch.zeros_like(outside),
    )  # fmt: skip


def _joined(grid: Grid, going: Going, keep: Bool[Tensor, "B"], fresh: Going) -> Going:
    parts = {name: torch.cat([getattr(going, name)[keep], getattr(fresh, name)]) for name in PER_FLOW}
    return Going(_some(grid, parts["who"]), **parts)


def _round(going: Going) -> Going:
    """Some steps with one matrix."""
    courant, near, late, largest = going.state.new_tensor(MARCH_SETTINGS)[going.pace].unbind(1)
    first, turn = going.state.new_tensor(COURANT), going.number // ROUND
    courant = torch.where(turn < len(first), first[turn.clamp(max=len(first) - 1)], courant)
    factors = _factors(going, courant)
    mixes = bool((going.number + ROUND > WARM).any())
    for _ in range(ROUND):
        wish = -solve(factors, going.flux.movedim(1, -1).float()).double().movedim(-1, 1).contiguous()
        going = _remember(going, wish)
        if mixes:
            ready = (going.number >= WARM) & ((going.reached < near) | (going.number >= late))
            wish = torch.where(ready[:, None, None, None], _mixed(going, wish), wish)
        going = _moved(going, wish, largest)
    return going


def _factors(going: Going, courant: Float64[Tensor, "B"]) -> Factors:
    """Of an implicit step of those Courant numbers with the first-order scheme."""
    blocks = blocks_of(going.grid, going.state, going.outside)
    inertia = wave_speeds(going.grid, going.state)[..., None, None] * conserved_by_state(going.state)
    blocks = blocks._replace(own=blocks.own + inertia / courant[:, None, None, None, None])
    half = Blocks(*(part.float() for part in blocks))
    return factorise(half, (SPRING * inertia).float(), int(going.grid.cut.sum()) // 2)


def _remember(going: Going, wish: State) -> Going:
    rows, place = torch.arange(len(wish), device=wish.device), going.number % REMEMBERED
    later = (going.number > 0)[:, None]
    going.moves[rows, place] = (going.state - going.before).flatten(1)
    going.turns[rows, place] = torch.where(later, (wish - going.wished).flatten(1), 0.0)
    return replace(going, before=going.state, wished=wish)


def _mixed(going: Going, wish: State) -> State:
    """Anderson's step: the one that the last ones, extrapolated as if all were linear, would end with."""
    flat, size = wish.flatten(1)[..., None], going.turns.norm(dim=2, keepdim=True) + TINY
    turns, moves = going.turns / size, going.moves / size
    ridge = RIDGE * torch.eye(REMEMBERED, dtype=turns.dtype, device=turns.device)
    weights = torch.linalg.solve_ex(turns @ turns.mT + ridge, turns @ flat)[0]
    return (flat - (moves + turns).mT @ weights).view_as(wish)


def _moved(going: Going, step: State, largest: Float64[Tensor, "B"]) -> Going:
    """After a step, shortened where density or pressure would change too much; steady flows stay."""
    change = (step[:, ::3] / going.state[:, ::3]).flatten(1).abs().amax(dim=1)
    share = (largest / change).clamp(max=1)
    on = going.reached > TOLERANCE
    moved = torch.where(on[:, None, None, None], going.state + share[:, None, None, None] * step, going.state)
    flux = residual(going.grid, moved, going.outside)
    return replace(
        going,
        state=moved,
        flux=flux,
        reached=_size(flux) / going.scale,
        steps=going.steps + on,
        number=going.number + 1,
    )


def _size(flux: State) -> Float64[Tensor, "B"]:
    return flux.flatten(1).norm(dim=1)


def _some(grid: Grid, who: Int64[Tensor, "b"]) -> Grid:
    along, across = (Sides(*(part[who] for part in side)) for side in (grid.along, grid.across))
    ends = (grid.ends[0][who], grid.ends[1][who])
    return Grid(grid.cut, grid.volume[who], along, across, grid.wall[who], grid.far[who], ends)


def _require(nodes: Given, outside: Given, cut: int) -> None:
    fits = nodes.dim() == 4 and nodes.shape[-1] == 2 and nodes.shape[1] % 2 == 1
    if not fits or nodes.shape[1] < 5 or nodes.shape[2] < 3 or 2 * cut > nodes.shape[1]:
        raise UserError(
            f"expected nodes (samples, n, m, 2) with an odd n from 5 and m from 3, of which 2 × {cut} are "
            f"paired, got {tuple(nodes.shape)}"
        )
    expected = (len(nodes), 4, *nodes.shape[1:3])
    if tuple(outside.shape) != expected or not (outside[:, ::3] > 0).all() or not outside.isfinite().all():
        raise UserError(
            f"expected density, velocity and pressure {expected}, finite and the first and last above zero, "
            f"got {tuple(outside.shape)}"
        )
    require_grid(nodes.double(), cut)


def crosses_itself(line: Float64[Tensor, "n 2"]) -> Bool[Tensor, ""]:
    """Whether two pieces of a line lie across each other: both ends of each on two sides of the other."""
    begin, way = line[:-1], line.diff(dim=0)
    to_ends = line[None] - begin[:, None]  # from the beginning of each piece
    side = (way[:, None, 0] * to_ends[..., 1] - way[:, None, 1] * to_ends[..., 0]).sign()
    across = side[:, :-1] * side[:, 1:] < 0
    return (across & across.mT).any()


def require_grid(nodes: Nodes, cut: int) -> None:
    """No quad of the grid may be turned over, nor the wall cross itself, and what is there twice must lie at
    the same place."""
    finite = nodes.isfinite().flatten(1).all(dim=1)
    first = max(cut - 1, 0)
    crossed = torch.stack([crosses_itself(line) for line in nodes[:, first : nodes.shape[1] - first, 0]])
    folded = (quad_areas(nodes) <= 0).flatten(1).any(dim=1)
    apart = (nodes[:, :cut, 0] != nodes[:, nodes.shape[1] - cut :, 0].flip(1)).flatten(1).any(dim=1)
    for wrong, words in (
        (~finite, "expected finite nodes, got NaN or infinity"),
        (
            folded,
            "the grid folds over itself: each quad needs an area, and its rows to the right of its lines",
        ),
        (crossed, "the wall crosses itself: a grid around such a body covers some places twice"),
        (apart, f"the first and last {cut} nodes of the first line are not the same points"),
    ):
        if wrong.any():
            raise SampleError(int(wrong.nonzero()[0]), words)
