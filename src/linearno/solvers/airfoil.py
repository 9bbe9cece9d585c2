"""Transonic flow around airfoils: shapes, C-grids and random samples of the Airfoil benchmark.

A C-grid runs from the end of the wake along its upper side to the trailing edge, around the airfoil through
the leading edge, and back along the lower side. Axes: B samples, I nodes along the C-grid, J nodes outwards.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray
from scipy.optimize import brentq
from torch import Tensor

from linearno.core.errors import SampleError, UserError
from linearno.solvers.euler import GAMMA, State, build_grid, mach_number
from linearno.solvers.redraw import Fields, solve_with_redraws
from linearno.solvers.steady_euler import SteadyFlow, Unchecked, march, require_grid, solve_euler

MACH = 0.8
BOX = (-0.25, 1.25), (-0.1, 0.1)  # x and y range of the box whose deformation bends the airfoil
CONTROL_POINTS = (
    8  # four on the lower edge of the box, left to right, then four on the upper edge, right to left
)
MAX_HEIGHT = 0.05  # of a random control point
RADIUS = WAKE_END = 40.0  # radius of the outer half circle around the trailing edge; x of the wake's end
GROWTH = 1.02  # size ratio of neighbouring cells near the airfoil
NEAR_SHARE = 3 / 4  # of the cells grow by GROWTH; the others grow faster
WAKE_CELLS, SIDE_CELLS, OUTWARD_CELLS = 5, 6, 5  # per unit of resolution
CELLS_PER_UNIT = 2 * (WAKE_CELLS + SIDE_CELLS)
MAX_DRAWS = 10

Heights = Float64[ndarray, "8"]
Points = Float64[ndarray, "n 2"]


def solve_airfoil(nodes: Unchecked) -> SteadyFlow:
    """Steady Euler flow at Mach 0.8 along x, with density and pressure 1 at the far field.

    Args:
        nodes: C-grids (B, I, J, 2) with the wake of `airfoil_nodes`: I = 22 n + 1.
    """
    if nodes.dim() != 4 or nodes.shape[1] % CELLS_PER_UNIT != 1:
        raise UserError(f"expected C-grids (samples, {CELLS_PER_UNIT} n + 1, m, 2), got {tuple(nodes.shape)}")
    return solve_euler(nodes, free_stream(nodes), cut=wake_nodes(nodes.shape[1]))


def airfoil_samples(
    rngs: Sequence[np.random.Generator],
    resolution: int,
    device: torch.device,
    *,
    concurrent: int | None = None,
) -> Fields:
    """Random airfoils and the flow around them, a sample for each generator.

    Airfoils are drawn on the CPU. An airfoil whose flow does not become steady is drawn again from its
    generator.

    Args:
        rngs: generators of the B samples.
        resolution: I, number of nodes along the C-grid.
        device: device that solves.
        concurrent: number of flows that march concurrently; all by default.

    Returns:
        `X`, `Y` (B, I, J), nodes; `Q` (B, 5, I, J), density, velocity, pressure and Mach number; `theta`
        (B, 8), heights of the control points; `res` (B,), relative residual; `draws` (B,), the draw that was
        solved.
    """
    require_resolution(resolution)

    def solve(samples: list[int]) -> tuple[Fields, Bool[ndarray, "b"]]:
        heights = np.array([draw_heights(rngs[i]) for i in samples])
        nodes = np.stack([_sample_nodes(i, row, resolution) for i, row in zip(samples, heights, strict=True)])
        on_device = torch.from_numpy(nodes).to(device)
        flow = march(build_grid(on_device, wake_nodes(resolution)), free_stream(on_device), concurrent)
        x, y = np.moveaxis(nodes, -1, 0)
        fields, residual = with_mach_number(flow.state).cpu().numpy(), flow.residual.cpu().numpy()
        sample = {"X": x, "Y": y, "Q": fields, "theta": heights, "res": residual}
        return sample, flow.converged.cpu().numpy()

    return solve_with_redraws(rngs, solve, max_draws=MAX_DRAWS, problem="no flow found for {} airfoils")


def draw_heights(rng: np.random.Generator) -> Heights:
    """Random heights of the control points; the first is 0, because equal heights only shift the airfoil."""
    return np.append(0.0, rng.uniform(-MAX_HEIGHT, MAX_HEIGHT, CONTROL_POINTS - 1))


def require_resolution(resolution: int) -> None:
    if resolution < 2 * CELLS_PER_UNIT or resolution % CELLS_PER_UNIT != 1:
        raise UserError(
            f"resolution {resolution} does not fit; Airfoil needs the nodes along its C-grid, a multiple of "
            f"{CELLS_PER_UNIT} and one more: {2 * CELLS_PER_UNIT + 1}, {3 * CELLS_PER_UNIT + 1}, … 221"
        )


def grid_shape(resolution: int) -> tuple[int, int]:
    """Number of nodes along the C-grid and outwards."""
    return resolution, OUTWARD_CELLS * (resolution // CELLS_PER_UNIT) + 1


def wake_nodes(resolution: int) -> int:
    """Number of nodes on each side of the wake, including the trailing edge."""
    return WAKE_CELLS * (resolution // CELLS_PER_UNIT) + 1


def free_stream(nodes: Float64[Tensor, "B I J 2"]) -> State:
    """Far-field state at all nodes."""
    parts = nodes.new_tensor([1, MACH * GAMMA**0.5, 0, 1])
    return parts[None, :, None, None].expand(len(nodes), 4, *nodes.shape[1:3]).contiguous()


def with_mach_number(state: State) -> Float64[Tensor, "B 5 I J"]:
    """Append the Mach number as fifth channel."""
    return torch.cat([state, mach_number(state)[:, None]], dim=1)


def forces(nodes: Float64[Tensor, "B I J 2"], state: State) -> Float64[Tensor, "B 2"]:
    """Drag and lift coefficients, from the pressure on the airfoil."""
    grid = build_grid(nodes, wake_nodes(nodes.shape[1]))
    force = (state[:, 3:, :, :1] * grid.wall).sum(dim=(2, 3))
    return force / (GAMMA * MACH**2 / 2)


def airfoil_nodes(heights: Float64[ndarray, "..."], resolution: int) -> Float64[ndarray, "I J 2"]:
    """C-grid around a NACA 0012 airfoil deformed by a box whose control points are lifted by `heights` (8,).

    Grid lines outwards are straight: from the airfoil to a half circle, from the wake to horizontal lines.
    """
    require_resolution(resolution)
    _require_heights(heights)
    cells = resolution // CELLS_PER_UNIT
    straight = naca0012(SIDE_CELLS * cells)
    body = straight + np.stack([np.zeros(len(straight)), box_lift(straight, heights)], axis=-1)
    body[-1] = body[0]  # equal up to rounding
    first = float(np.linalg.norm(straight[1] - straight[0]))
    along = stretched_positions(WAKE_CELLS * cells, first / (WAKE_END - 1))[:, None]
    wake = body[0] * (1 - along) + np.array([WAKE_END, 0.0]) * along
    inner = np.concatenate([wake[:0:-1], body, wake[1:]])
    angles = np.linspace(np.pi / 2, 3 * np.pi / 2, len(body))
    circle = np.stack([1 + RADIUS * np.cos(angles), RADIUS * np.sin(angles)], axis=-1)
    x = np.linspace(WAKE_END, 1, len(wake))[:-1]
    above = np.stack([x, np.full_like(x, RADIUS)], axis=-1)
    outer = np.concatenate([above, circle, above[::-1] * (1, -1)])
    outwards = stretched_positions(OUTWARD_CELLS * cells, 1 / (SIDE_CELLS * cells) / RADIUS)[:, None]
    nodes: ndarray = inner[:, None] * (1 - outwards) + outer[:, None] * outwards
    require_grid(torch.from_numpy(nodes)[None], wake_nodes(resolution))
    return nodes


def _sample_nodes(index: int, heights: Heights, resolution: int) -> Float64[ndarray, "I J 2"]:
    try:
        return airfoil_nodes(heights, resolution)
    except UserError as error:
        message = error.message if isinstance(error, SampleError) else str(error)
        raise SampleError(index, message) from None


def naca0012(cells: int) -> Points:
    """Points of NACA 0012 from the sharp trailing edge along the upper side and back along the lower side.

    Args:
        cells: number of cells on each side.
    """
    x = np.append(0.0, np.linspace(0, 1, cells))
    x[1] = x[2] / 4
    y = 0.6 * (0.2969 * np.sqrt(x) - 0.126 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4)
    y[-1] = 0  # zero up to rounding
    upper = np.stack([x, y], axis=-1)[::-1]
    return np.concatenate([upper, upper[-2::-1] * (1, -1)])


def box_lift(points: Points, heights: Heights) -> Float64[ndarray, "n"]:
    """Vertical displacement of points in the box: cubic in x through its control points, linear in y."""
    (left, right), (low, high) = BOX
    x, y = points.T
    knots = np.linspace(left, right, CONTROL_POINTS // 2)
    cubics = [
        np.prod([(x - other) / (knot - other) for other in knots if other != knot], axis=0) for knot in knots
    ]
    lower, upper = heights[:4] @ np.array(cubics), heights[:3:-1] @ np.array(cubics)
    return (lower * (high - y) + upper * (y - low)) / (high - low)


def stretched_positions(cells: int, first: float) -> Float64[ndarray, "n"]:
    """Nodes from 0 to 1 with first cell `first`; cells grow by 2 %, and faster in the last quarter."""
    near = int(NEAR_SHARE * cells)
    sizes = first * GROWTH ** np.arange(near + 1)
    far, left = np.arange(cells - near), 1 - sizes[:-1].sum()
    growth = brentq(lambda rate: sizes[-1] * (rate**far).sum() - left, 1, 100, xtol=1e-14)
    positions = np.append(0, np.cumsum(np.append(sizes[:-1], sizes[-1] * growth**far)))
    positions[-1] = 1
    return positions


def _require_heights(heights: Float64[ndarray, "..."]) -> None:
    (_, _), (low, high) = BOX
    half = (high - low) / 2
    if heights.shape != (CONTROL_POINTS,) or not (np.abs(heights) < half).all():
        raise UserError(
            f"expected {CONTROL_POINTS} heights within ±{half:g}, half the height of the box (its edges must "
            f"not cross), got {np.array2string(heights, precision=3)}"
        )
