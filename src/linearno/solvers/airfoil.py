"""Airfoils in a transonic stream: shapes, grids around them, and the recipe of the Airfoil benchmark.

A C-grid runs from the end of the wake along its upper side to the trailing edge, over the airfoil by way of
its leading edge, and back along the lower side. Axes: B samples, I nodes along it, J outwards.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from scipy.optimize import brentq
from torch import Tensor

from linearno.core.errors import SampleError, UserError
from linearno.solvers.euler import GAMMA, State, grid_of, mach
from linearno.solvers.steady_flow import Steady, is_solved, march, require_grid, solve_euler

MACH = 0.8
BOX = (-0.25, 1.25), (-0.1, 0.1)  # whose corners and edges bend the airfoil
CONTROLS = 8  # heights of the box: four of its lower edge from left to right, four of the upper back
RANGE = 0.05  # of the random heights
RADIUS = END = 40.0  # of the grid's bow around the trailing edge of a straight airfoil; where the wake ends
GROWTH, NEAR = 1.02, 3 / 4  # of cells from one to the next, and the share of cells that grow no faster
WAKE, SIDE, OUTWARDS = 5, 6, 5  # cells, for each unit of resolution: of the wake, on each side, outwards
UNIT = 2 * (WAKE + SIDE)
MAX_DRAWS = 10
log = logging.getLogger(__name__)

Heights = Float64[ndarray, "8"]
Points = Float64[ndarray, "n 2"]


class Airfoils(NamedTuple):
    X: Float[ndarray, "B I J"]
    Y: Float[ndarray, "B I J"]
    Q: Float[ndarray, "B 5 I J"]  # density, velocity along x and y, pressure, Mach number
    theta: Float[ndarray, "B 8"]
    res: Float[ndarray, "B"]
    draws: Float[ndarray, "B"]


def solve_airfoil(nodes: Float[Tensor, "..."]) -> Steady:
    """The flow at Mach 0.8 along x, density and pressure 1 far away, around airfoils on C-grids (B, I, J, 2),
    which have as many nodes in their wakes as those of `airfoil_nodes`."""
    if nodes.dim() != 4 or nodes.shape[1] % UNIT != 1:
        raise UserError(f"expected C-grids (samples, {UNIT} n + 1, m, 2), got {tuple(nodes.shape)}")
    return solve_euler(nodes, stream(nodes), cut=paired_nodes(nodes.shape[1]))


def airfoil_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, room: int | None = None
) -> Airfoils:
    """Grids of random airfoils and the flow at their nodes, a sample for each generator; `room` of them, or
    all, are solved at once.

    `theta` are the heights of each, `res` is the relative residual and `draws` the draw that was solved. The
    airfoils are drawn on the CPU. One whose flow does not become steady is drawn again, from its generator.
    """
    require_resolution(resolution)
    shape = grid_shape(resolution)
    heights, places = np.empty((len(rngs), CONTROLS)), np.empty((len(rngs), *shape, 2))
    fields, reached = np.empty((len(rngs), 5, *shape)), np.empty(len(rngs))
    draws, left = np.zeros(len(rngs)), np.arange(len(rngs))
    for draw in range(1, MAX_DRAWS + 1):
        heights[left] = [draw_heights(rngs[i]) for i in left.tolist()]
        for i in left.tolist():
            places[i] = _nodes_of_sample(i, heights[i], resolution)
        nodes = torch.from_numpy(places[left]).to(device)
        found = march(grid_of(nodes, paired_nodes(resolution)), stream(nodes), room)
        fields[left], reached[left] = with_mach(found.state).cpu().numpy(), found.reached.cpu().numpy()
        draws[left], left = draw, left[~is_solved(found).cpu().numpy()]
        if not len(left):
            x, y = np.moveaxis(places, -1, 0)
            return Airfoils(x, y, fields, heights, reached, draws)
        log.warning("no flow found for %d of %d airfoils at draw %d; drawn again", len(left), len(rngs), draw)
    raise SampleError(int(left[0]), f"no flow found for {MAX_DRAWS} random airfoils one after the other")


def draw_heights(rng: np.random.Generator) -> Heights:
    """The first is zero: all alike would only shift the airfoil."""
    return np.append(0.0, rng.uniform(-RANGE, RANGE, CONTROLS - 1))


def require_resolution(resolution: int) -> None:
    if resolution < 2 * UNIT or resolution % UNIT != 1:
        raise UserError(
            f"resolution {resolution} does not fit; Airfoil needs the nodes along its C-grid, a multiple of "
            f"{UNIT} and one more: {2 * UNIT + 1}, {3 * UNIT + 1}, … 221"
        )


def grid_shape(resolution: int) -> tuple[int, int]:
    return resolution, OUTWARDS * (resolution // UNIT) + 1


def paired_nodes(resolution: int) -> int:
    """Those of each branch of the wake, up to the trailing edge."""
    return WAKE * (resolution // UNIT) + 1


def stream(nodes: Float64[Tensor, "B I J 2"]) -> State:
    parts = nodes.new_tensor([1, MACH * GAMMA**0.5, 0, 1])
    return parts[None, :, None, None].expand(len(nodes), 4, *nodes.shape[1:3]).contiguous()


def with_mach(state: State) -> Float64[Tensor, "B 5 I J"]:
    return torch.cat([state, mach(state)[:, None]], dim=1)


def forces(nodes: Float64[Tensor, "B I J 2"], state: State) -> Float64[Tensor, "B 2"]:
    """Drag and lift coefficients: the pressure on the airfoil against that of the stream."""
    grid = grid_of(nodes, paired_nodes(nodes.shape[1]))
    push = (state[:, 3:, :, :1] * grid.wall).sum(dim=(2, 3))
    return push / (GAMMA * MACH**2 / 2)


def airfoil_nodes(heights: Float64[ndarray, "..."], resolution: int) -> Float64[ndarray, "I J 2"]:
    """The C-grid around NACA 0012, bent by the heights that the controls of its box are moved by.

    Lines outwards are straight, from the airfoil to half a circle, from the wake to lines above and below.
    """
    require_resolution(resolution)
    _require_heights(heights)
    cells = resolution // UNIT
    straight = naca0012(SIDE * cells)
    body = straight + np.stack([np.zeros(len(straight)), lift_of(straight, heights)], axis=-1)
    body[-1] = body[0]  # to rounding it is
    first = float(np.linalg.norm(straight[1] - straight[0]))
    way = spread(WAKE * cells, first / (END - 1))[:, None]
    wake = body[0] * (1 - way) + np.array([END, 0.0]) * way
    inner = np.concatenate([wake[:0:-1], body, wake[1:]])
    angles = np.linspace(np.pi / 2, 3 * np.pi / 2, len(body))
    bow = np.stack([1 + RADIUS * np.cos(angles), RADIUS * np.sin(angles)], axis=-1)
    x = np.linspace(END, 1, len(wake))[:-1]
    above = np.stack([x, np.full_like(x, RADIUS)], axis=-1)
    outer = np.concatenate([above, bow, above[::-1] * (1, -1)])
    out = spread(OUTWARDS * cells, 1 / (SIDE * cells) / RADIUS)[:, None]
    nodes: ndarray = inner[:, None] * (1 - out) + outer[:, None] * out
    require_grid(torch.from_numpy(nodes)[None], paired_nodes(resolution))
    return nodes


def _nodes_of_sample(index: int, heights: Heights, resolution: int) -> Float64[ndarray, "I J 2"]:
    try:
        return airfoil_nodes(heights, resolution)
    except SampleError as error:
        raise SampleError(index, error.message) from None
    except UserError as error:
        raise SampleError(index, str(error)) from None


def naca0012(cells: int) -> Points:
    """From the trailing edge, closed and sharp, over the upper side to the leading edge and back below."""
    x = np.append(0.0, np.linspace(0, 1, cells))
    x[1] = x[2] / 4
    y = 0.6 * (0.2969 * np.sqrt(x) - 0.126 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4)
    y[-1] = 0  # to rounding it is
    upper = np.stack([x, y], axis=-1)[::-1]
    return np.concatenate([upper, upper[-2::-1] * (1, -1)])


def lift_of(points: Points, heights: Heights) -> Float64[ndarray, "n"]:
    """How far the box lifts these points: cubic along x between its controls, linear across."""
    (left, right), (low, high) = BOX
    x, y = points.T
    knots = np.linspace(left, right, CONTROLS // 2)
    cubics = [
        np.prod([(x - other) / (one - other) for other in knots if other != one], axis=0) for one in knots
    ]
    lower, upper = heights[:4] @ np.array(cubics), heights[:3:-1] @ np.array(cubics)
    return (lower * (high - y) + upper * (y - low)) / (high - low)


def spread(cells: int, first: float) -> Float64[ndarray, "n"]:
    """Places from 0 to 1: cells grow by 2 % from the first, the last quarter by as much as it takes."""
    near = int(NEAR * cells)
    sizes = first * GROWTH ** np.arange(near + 1)
    far, left = np.arange(cells - near), 1 - sizes[:-1].sum()
    growth = brentq(lambda rate: sizes[-1] * (rate**far).sum() - left, 1, 100, xtol=1e-14)
    places = np.append(0, np.cumsum(np.append(sizes[:-1], sizes[-1] * growth**far)))
    places[-1] = 1
    return places


def _require_heights(heights: Float64[ndarray, "..."]) -> None:
    (_, _), (low, high) = BOX
    half = (high - low) / 2
    if heights.shape != (CONTROLS,) or not (np.abs(heights) < half).all():
        raise UserError(
            f"expected {CONTROLS} heights within ±{half:g}, half the height of the box, or its edges may "
            f"cross and the body leaves it, got {np.array2string(heights, precision=3)}"
        )
