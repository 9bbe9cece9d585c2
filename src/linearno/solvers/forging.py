"""Forging of an elastoplastic block by a rigid die, in batches: the solver of the Plasticity benchmark.

    ρ u_tt = ∇·σ in the block,  σ n = 0 on the free sides,  u_y = 0 on the plane below (frictionless),
    frictionless contact with the die above, by penalty

with the material and the scheme of `plasticity`. Frames on meshes of 11, 21 and 41 nodes along the block
converge at first order.

Lengths are in mm, times in ms, stresses in MPa. Axes: B samples, n × m nodes of the block (from right to left
and from top to bottom), K knots of a die, P contact points, T frames.
"""

import logging
from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray
from scipy.interpolate import CubicSpline
from torch import Tensor
from torch.nn.functional import pad

from linearno.core.errors import SampleError, UserError, look_up
from linearno.solvers.captured_steps import capture_step
from linearno.solvers.plasticity import Body, Material, Nodes, body_at_rest, element_areas

Unchecked = Float[Tensor, "..."]  # user input, checked with a one-line error
Frames = Float[Tensor, "B n m T 2"]

STEEL = Material(young=200e3, poisson=0.3, density=7.85e-3, yield_stress=70.0)  # density in MPa ms²/mm²
LENGTH, HEIGHT = 50.0, 15.0
RIGHT, TOP = 0.35, 14.9  # x of the right end and y of the top of the block at rest, as published
DIE_LOWEST = 15.0  # lowest y of a random die at t = 0
DIE_TRAVEL, DURATION = 6.0, 2.0  # mm in ms: the die moves at 3 mm/ms
FRAMES, INTERVAL = 20, 0.1  # at 0, 0.1, …, 1.9 ms
DIE_KNOTS, END_HEIGHT = 9, 7.5  # knots of a random die; height of the outer two above the lowest
HEIGHT_RANGE = (1.7, 7.8)  # heights of the other knots above the lowest
MAX_OVERSHOOT = 0.1  # depth of the spline of a random die below its lowest knot
MAX_DIE_DRAWS = 1000  # until the overshoot is small enough
MAX_SAMPLE_DRAWS = 5  # until no element folds
RELATIVE_STEP = 0.6  # time step over the largest stable step at rest
MASS_SCALING_INTERVAL = 20  # steps between updates of the scaled masses
MIN_COMPILED_STEPS = {"cuda": 10_000, "cpu": 40_000}  # fewer steps do not repay compilation
PENALTY = 0.5  # contact stiffness over Young's modulus
PUBLISHED_NODES = 101
log = logging.getLogger(__name__)


class Scheme(NamedTuple):
    """Mesh of the solver relative to the stored points.

    Args:
        refinement: elements per interval between stored points.
        description: text for the command line.
    """

    refinement: int
    description: str


SCHEMES = {
    "plain": Scheme(1, "one element between points that are kept"),
    "fine": Scheme(2, "four elements in the place of one between points that are kept"),
}


class Die(NamedTuple):
    """Piecewise cubic dies: y = Σ cₖ (x − xᵢ)³⁻ᵏ between equispaced knots xᵢ over the block at rest.

    Args:
        coefficients: c of all pieces of all samples.
        first: index of the first piece of each sample.
        pieces: number of pieces of a die.
    """

    coefficients: Float64[Tensor, "_ 4"]
    first: Int64[Tensor, "B 1"]
    pieces: int

    def penetration(
        self, x: Float64[Tensor, "B P"], y: Float64[Tensor, "B P"]
    ) -> tuple[Float64[Tensor, "B P"], Float64[Tensor, "B P"]]:
        """Depth of points inside the die (0 outside), and slope of the die at their x."""
        width = LENGTH / self.pieces
        along = x - (RIGHT - LENGTH)
        piece = (along / width).long().clamp_(0, self.pieces - 1)  # arbitrary for NaN, which stays NaN in t
        t = along - piece * width
        a, b, c, d = self.coefficients[piece + self.first].unbind(-1)
        slope = torch.addcmul(torch.addcmul(c, b, t, value=2), a * t, t, value=3)
        height = torch.addcmul(d, torch.addcmul(c, torch.addcmul(b, a, t), t), t)
        inside = (along >= 0) & (along <= LENGTH)
        return (y - height).clamp_min_(0) * inside, slope


def solve_forging(
    heights: Unchecked,
    resolution: int,
    *,
    material: Material = STEEL,
    step: float = RELATIVE_STEP,
    frames: int = FRAMES,
    travel: float = DIE_TRAVEL,
) -> Frames:
    """Positions of the nodes at 0, 0.1, … ms while the die moves down.

    Contact forces act at nodes and at the middles of edges, so that a sharp die cannot pass between two
    nodes. Strongly compressed elements get more mass to keep `step` stable (mass scaling); forging is slow,
    so inertia matters little.

    Args:
        heights: (B, K), y of the dies at t = 0 at equispaced knots from the left to the right end of the
            block, interpolated by a cubic not-a-knot spline.
        resolution: n, number of nodes along the block; elements are squares of 50/(n − 1) mm.
        material: of the block.
        step: time step over the largest stable step at rest.
        frames: T, number of frames.
        travel: distance that the die moves in 2 ms.
    """
    require_resolution(resolution)
    _require_heights(heights)
    if not (0 < step < 0.7 and frames >= 1 and 0 <= travel < inf):
        got = f"{step:g}, {frames} and {travel:g}"
        raise UserError(f"expected 0 < step < 0.7, frames ≥ 1 and a finite travel ≥ 0, got {got}")
    lowest = _lowest(heights) - travel * (frames - 1) * INTERVAL / DURATION
    if (lowest <= TOP - HEIGHT).any():
        first = int((lowest <= TOP - HEIGHT).argmax())
        raise SampleError(
            first,
            f"the die reaches {lowest[first]:.3g} mm, but the plane under the block is at {TOP - HEIGHT:.3g} "
            "mm; expected less travel, fewer frames or a higher die",
        )
    positions, solved = _forge(heights.double(), resolution, material, step, frames, travel)
    if not solved.all():
        raise SampleError(
            int((~solved).nonzero()[0]),
            f"elements fold or are not finite within {frames} frames on {resolution} nodes along the block; "
            "expected a blunter die, less travel or a smaller step",
        )
    return positions


def plasticity_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str = "plain"
) -> tuple[Float[ndarray, "B n"], Float[ndarray, "B n m T 4"], Float[ndarray, "B"]]:
    """Random dies and the forged blocks, a sample for each generator.

    Dies are drawn on the CPU. A die that folds elements is drawn again from its generator.

    Args:
        rngs: generators of the B samples.
        resolution: n, number of stored points along the block.
        device: device that solves.
        scheme: key of `SCHEMES`.

    Returns:
        Heights of the dies from left to right; x, y, ux, uy of the points, from right to left and top to
        bottom, at 20 frames; the draw that was solved.
    """
    require_resolution(resolution)
    mesh = mesh_resolution(resolution, scheme)
    stride = (mesh - 1) // (resolution - 1)
    knots = np.empty((len(rngs), DIE_KNOTS))
    outputs = np.empty((len(rngs), resolution, node_rows(resolution), FRAMES, 4), dtype=np.float32)
    draws, unsolved = np.zeros(len(rngs)), np.arange(len(rngs))
    for draw in range(1, MAX_SAMPLE_DRAWS + 1):
        knots[unsolved] = np.stack([draw_die(rngs[i]) for i in unsolved.tolist()])
        heights = torch.from_numpy(knots[unsolved]).to(device)
        positions, solved = _forge(heights, mesh, STEEL, RELATIVE_STEP, FRAMES, DIE_TRAVEL)
        positions = positions[:, ::stride, ::stride]
        displacements = positions - positions[..., :1, :]
        outputs[unsolved] = torch.cat([positions, displacements], dim=-1).cpu().numpy()
        draws[unsolved] = draw
        unsolved = unsolved[~solved.cpu().numpy()]
        if not len(unsolved):
            x = np.linspace(RIGHT - LENGTH, RIGHT, resolution)
            return np.stack([die_spline(heights)(x) for heights in knots]), outputs, draws
        remedy = "; drawn again" if draw < MAX_SAMPLE_DRAWS else ""
        log.warning("elements fold in %d of %d blocks at draw %d%s", len(unsolved), len(rngs), draw, remedy)
    raise SampleError(int(unsolved[0]), f"elements fold under {MAX_SAMPLE_DRAWS} random dies in a row")


def draw_die(rng: np.random.Generator) -> Float64[ndarray, "9"]:
    """Heights of a random die at nine knots.

    One of the inner five knots is the lowest; the outer two are 7.5 and the others 1.7 to 7.8 above it. Dies
    whose spline overshoots the lowest knot by more than 0.1 are drawn again; the lowest point is set to 15.
    A die with its lowest knot next to an end would push the block sideways by much more than the 5.5 mm or
    so of the published file.
    """
    fine = np.linspace(RIGHT - LENGTH, RIGHT, 1001)
    for _ in range(MAX_DIE_DRAWS):
        heights = rng.uniform(*HEIGHT_RANGE, DIE_KNOTS)
        heights[[0, -1]] = END_HEIGHT
        heights[rng.integers(2, DIE_KNOTS - 2)] = 0
        lowest = die_spline(heights)(fine).min()
        if lowest >= -MAX_OVERSHOOT:
            return heights - lowest + DIE_LOWEST
    raise UserError(f"no die found among {MAX_DIE_DRAWS} draws")  # about half of the draws are accepted


def die_spline(heights: Float64[ndarray, "*B K"]) -> CubicSpline:
    """Spline through equispaced knots over the block at rest, from left to right."""
    knots = np.linspace(RIGHT - LENGTH, RIGHT, heights.shape[-1])
    return CubicSpline(knots, heights, axis=-1)


def block_nodes(resolution: int) -> Float64[Tensor, "2 n m"]:
    """x and y of the nodes at rest; i counts from the right end, j from the top."""
    spacing, rows = LENGTH / (resolution - 1), node_rows(resolution)
    x = RIGHT - spacing * torch.arange(resolution, dtype=torch.float64)
    y = TOP - spacing * torch.arange(rows, dtype=torch.float64)
    return torch.stack(torch.meshgrid(x, y, indexing="ij"))


def node_rows(resolution: int) -> int:
    """Number m of nodes from top to bottom for `resolution` nodes along the block."""
    return round((resolution - 1) * HEIGHT / LENGTH) + 1


def mesh_resolution(resolution: int, scheme: str) -> int:
    """Nodes along the block of the solver's mesh for `resolution` stored points."""
    return (resolution - 1) * look_up("scheme", scheme, SCHEMES).refinement + 1


def require_resolution(resolution: int) -> None:
    if resolution < 11 or resolution % 10 != 1:
        raise UserError(
            f"resolution {resolution} does not fit; expected 10 k + 1 nodes along the block: 11, 21, … 101"
        )


def _require_heights(heights: Unchecked) -> None:
    if heights.dim() != 2 or heights.shape[1] < 4:
        raise UserError(f"expected heights (samples, knots) with 4 knots or more, got {tuple(heights.shape)}")
    finite = heights.isfinite().all(dim=1)
    if not finite.all():
        raise SampleError(int((~finite).nonzero()[0]), "expected a finite die, got NaN or infinity")
    lowest = _lowest(heights)
    inside = lowest < TOP - 1e-6
    if inside.any():
        first = int(inside.argmax())
        raise SampleError(
            first, f"the die starts at {lowest[first]:.4g} mm, inside the block; expected {TOP} or more"
        )


def _lowest(heights: Unchecked) -> Float64[ndarray, "B"]:
    """Lowest y of each die."""
    return die_spline(heights.double().cpu().numpy())(np.linspace(RIGHT - LENGTH, RIGHT, 1001)).min(axis=-1)


def _forge(
    heights: Float64[Tensor, "B K"],
    resolution: int,
    material: Material,
    step: float,
    frames: int,
    travel: float,
) -> tuple[Frames, Bool[Tensor, "B"]]:
    """The frames, and whether no element of a sample folded."""
    spacing = LENGTH / (resolution - 1)
    steps = ceil(INTERVAL / (step * material.stable_step(spacing)))
    nodes = block_nodes(resolution).to(heights.device).expand(len(heights), -1, -1, -1)
    body = body_at_rest(nodes, material, spacing=spacing, dt=INTERVAL / steps)
    press = Press(build_die(heights), body, speed=travel / DURATION)
    compiled = len(heights) > 1 and steps * (frames - 1) > MIN_COMPILED_STEPS[heights.device.type]
    batched = [*body.state, body.dt_over_mass, press.bottom, press.die.coefficients, press.die.first]
    advance = capture_step(press.step, [*body.state, press.die_travel], fuse=batched if compiled else ())
    positions = [body.position.clone()]
    solved = torch.ones(len(heights), dtype=torch.bool, device=heights.device)
    for _ in range(frames - 1):
        for count in range(steps):
            if count % MASS_SCALING_INTERVAL == 0:
                body.scale_masses()
            advance()
        positions.append(body.position.clone())
        unfolded = (element_areas(body.shape) > 0).flatten(1).all(dim=1)
        solved &= unfolded & body.position.isfinite().flatten(1).all(dim=1)
    return torch.stack(positions, dim=-1).permute(0, 2, 3, 4, 1), solved


def build_die(heights: Float64[Tensor, "B K"]) -> Die:
    """Dies on the device of the heights."""
    batch, pieces = len(heights), heights.shape[1] - 1
    coefficients = torch.from_numpy(die_spline(heights.cpu().numpy()).c)  # 4, pieces, B
    flat = coefficients.permute(2, 1, 0).reshape(-1, 4).contiguous()
    first = pieces * torch.arange(batch)[:, None]
    return Die(flat.to(heights.device), first.to(heights.device), pieces)


class Press:
    """Dies that move down at constant speed, and the plane below the body.

    Args:
        die: shapes of the dies at t = 0.
        body: body between die and plane.
        speed: of the dies, downwards.
    """

    def __init__(self, die: Die, body: Body, *, speed: float):
        self.die, self.body, self.speed = die, body, speed
        self.die_travel = body.position.new_zeros(1)  # not 0-d, which the compiler would treat as a constant
        self.bottom = body.position[:, 1, :, -1].clone()
        weights = body.position.new_full((body.position.shape[2],), 1 / 3)  # Simpson's rule on each edge
        weights[[0, -1]] = 1 / 6
        self.weights = PENALTY * body.material.young * weights

    def step(self) -> None:
        self.body.step(self.add_contact_forces, self.apply_supports)
        self.die_travel.add_(self.speed * self.body.dt)

    def add_contact_forces(self, position: Nodes, force: Nodes) -> None:
        """Add penalty forces normal to the die where the top of the body penetrates it."""
        top, stiffness = position[..., 0], PENALTY * self.body.material.young
        force[..., 0].addcmul_(self.pressure(top), self.weights)
        padded = pad(top, (1, 1), mode="replicate")
        middles = (padded[..., 1:-2] + padded[..., 2:-1]).mul_(9).sub_(padded[..., :-3]).sub_(padded[..., 3:])
        middle_forces = self.pressure(middles.mul_(1 / 16)).mul_(stiffness * (2 / 3) / 16)
        nodal = 9 * (pad(middle_forces, (1, 2)) + pad(middle_forces, (2, 1)))
        nodal = nodal - pad(middle_forces, (0, 3)) - pad(middle_forces, (3, 0))
        nodal[..., 1] += nodal[..., 0]
        nodal[..., -2] += nodal[..., -1]
        force[..., 0] += nodal[..., 1:-1]

    def pressure(self, points: Float64[Tensor, "B 2 P"]) -> Float64[Tensor, "B 2 P"]:
        """Contact force at points on the top, for unit stiffness."""
        depth, slope = self.die.penetration(points[:, 0], points[:, 1] + self.die_travel)
        scaled = depth / (slope * slope).add_(1)
        return torch.stack([scaled * slope, -scaled], dim=1)

    def apply_supports(self, position: Nodes, velocity: Nodes) -> None:
        """Keep the lowest nodes on the plane."""
        position[:, 1, :, -1].copy_(self.bottom)
        velocity[:, 1, :, -1].zero_()
