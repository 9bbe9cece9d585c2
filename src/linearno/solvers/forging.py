"""A block that is forged by a rigid die of random shape, many samples at once: the Plasticity benchmark.

    ρ u_tt = ∇·σ in the block,  σ n = 0 on its free sides,  u_y = 0 on the plane under it, on which it slides;
    no point is above the die, which pushes at right angles to itself, without friction

with the material and the scheme of `plasticity`. Between meshes of 11, 21 and 41 nodes along the block the
frames approach their limit at first order.

Lengths are in mm, times in ms, stresses in MPa. Axes: B samples, n × m nodes of the block, from its right to
its left end and from its top down, K knots of a die, P places at which it may touch, T frames.
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
from linearno.solvers.plasticity import Body, Material, Nodes, areas, body_at_rest

Given = Float[Tensor, "..."]  # from a user, who gets a line about a wrong shape
Frames = Float[Tensor, "B n m T 2"]

STEEL = Material(young=200e3, poisson=0.3, density=7.85e-3, yields=70.0)  # density in MPa ms²/mm²
LENGTH, HEIGHT = 50.0, 15.0
RIGHT, TOP = 0.35, 14.9  # of the block at rest, as in the published file
DIE_LOWEST = 15.0  # where the die begins
TRAVEL, DURATION = 6.0, 2.0  # of the die: 3 mm/ms
FRAMES, INTERVAL = 20, 0.1  # at 0, 0.1, …, 1.9 ms
KNOTS, ENDS = 9, 7.5  # of a random die: how many, and how far the outer two are above the lowest
HEIGHTS = (1.7, 7.8)  # of the other inner knots above the lowest
SAG = 0.1  # how far a random die may reach below its lowest knot
MAX_DRAWS = 1000  # of a die until one does not
MAX_SOLVES = 5  # of a sample until none of its elements folds
STEP = 0.6  # of the largest stable step of elements at rest
WEIGH_EVERY = 20  # steps between two looks at how squeezed elements are
MANY_STEPS = {"cuda": 10_000, "cpu": 40_000}  # for which it pays to compile one
PENALTY = 0.5  # stiffness of the contact, in Young's moduli
PUBLISHED_NODES = 101
log = logging.getLogger(__name__)


class Scheme(NamedTuple):
    """How many elements lie along an edge between two points that are kept."""

    finer: int
    words: str


SCHEMES = {
    "plain": Scheme(1, "one element between points that are kept"),
    "fine": Scheme(2, "four elements in the place of one between points that are kept"),
}


class Die(NamedTuple):
    """y = Σ cₖ (x − xᵢ)³⁻ᵏ right of knot xᵢ, of even ones over the block at rest, and nothing beyond."""

    coefficients: Float64[Tensor, "pieces 4"]  # of all samples, one after the other
    first: Int64[Tensor, "B 1"]  # piece of each sample
    pieces: int

    def gap(
        self, x: Float64[Tensor, "B P"], y: Float64[Tensor, "B P"]
    ) -> tuple[Float64[Tensor, "B P"], Float64[Tensor, "B P"]]:
        """How far a point is above the die, or else zero, and the slope of the die there."""
        width = LENGTH / self.pieces
        along = x - (RIGHT - LENGTH)
        piece = (along / width).long().clamp_(0, self.pieces - 1)  # of NaN any: it stays one in t
        t = along - piece * width
        a, b, c, d = self.coefficients[piece + self.first].unbind(-1)
        slope = torch.addcmul(torch.addcmul(c, b, t, value=2), a * t, t, value=3)
        height = torch.addcmul(d, torch.addcmul(c, torch.addcmul(b, a, t), t), t)
        inside = (along >= 0) & (along <= LENGTH)
        return (y - height).clamp_min_(0) * inside, slope


def solve_forging(
    heights: Given,
    resolution: int,
    *,
    material: Material = STEEL,
    step: float = STEP,
    frames: int = FRAMES,
    travel: float = TRAVEL,
) -> Frames:
    """Places of the nodes at 0, 0.1, … ms, `frames` of them, while the die moves down by `travel` in 2 ms.

    `heights` (B, K) of the die at equispaced knots from the left end of the block to the right one, through
    which goes a cubic spline (not-a-knot), at t = 0. The bottom of the block slides on a plane, the die has
    no friction. `resolution` nodes along the block make square elements of 50/(resolution − 1) mm. Contact is
    by penalty, at nodes and in the middle of edges, so that a sharp die cannot pass between two nodes.

    `step` is relative to the largest stable one at rest. Elements that are squeezed so that it is not stable
    for them get more mass: it needs no more steps, and forging is so slow that inertia matters little.
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
    places, solved = _forge(heights.double(), resolution, material, step, frames, travel)
    if not solved.all():
        raise SampleError(
            int((~solved).nonzero()[0]),
            f"elements fold or are not finite within {frames} frames on {resolution} nodes along the block; "
            "expected a blunter die, less travel or a smaller step",
        )
    return places


def plasticity_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str = "plain"
) -> tuple[Float[ndarray, "B n"], Float[ndarray, "B n m T 4"], Float[ndarray, "B"]]:
    """`input`, the heights of random dies from left to right, `output` = (x, y, ux, uy) of points from right
    to left and from the top down at 20 frames, and at which draw each of them was solved.

    Dies are drawn on the CPU. One that folds elements is drawn again, from the same generator.
    """
    require_resolution(resolution)
    mesh = mesh_of(resolution, scheme)
    every = (mesh - 1) // (resolution - 1)
    knots = np.empty((len(rngs), KNOTS))
    outputs = np.empty((len(rngs), resolution, rows_of(resolution), FRAMES, 4), dtype=np.float32)
    draws, left = np.zeros(len(rngs)), np.arange(len(rngs))
    for draw in range(1, MAX_SOLVES + 1):
        knots[left] = np.stack([draw_die(rngs[i]) for i in left.tolist()])
        heights = torch.from_numpy(knots[left]).to(device)
        places, solved = _forge(heights, mesh, STEEL, STEP, FRAMES, TRAVEL)
        places = places[:, ::every, ::every]
        moved = places - places[..., :1, :]
        outputs[left], draws[left] = torch.cat([places, moved], dim=-1).cpu().numpy(), draw
        left = left[~solved.cpu().numpy()]
        if not len(left):
            x = np.linspace(RIGHT - LENGTH, RIGHT, resolution)
            return np.stack([die_spline(each)(x) for each in knots]), outputs, draws
        again = "; drawn again" if draw < MAX_SOLVES else ""
        log.warning("elements fold in %d of %d blocks at draw %d%s", len(left), len(rngs), draw, again)
    raise SampleError(int(left[0]), f"elements fold under {MAX_SOLVES} random dies one after the other")


def draw_die(rng: np.random.Generator) -> Float64[ndarray, "9"]:
    """Heights at nine knots: the outer two 7.5 above the lowest, one of the inner five, and the other
    six 1.7 to 7.8 above it. Drawn again until the spline through them does not reach far below its lowest
    knot; then its lowest point is set to 15.

    A die that is lowest next to an end throws the block aside: points then move by much more than the 5.5 mm
    or so of the published file.
    """
    fine = np.linspace(RIGHT - LENGTH, RIGHT, 1001)
    for _ in range(MAX_DRAWS):
        heights = rng.uniform(*HEIGHTS, KNOTS)
        heights[[0, -1]] = ENDS
        heights[rng.integers(2, KNOTS - 2)] = 0
        lowest = die_spline(heights)(fine).min()
        if lowest >= -SAG:
            return heights - lowest + DIE_LOWEST
    raise UserError(f"no die found among {MAX_DRAWS} draws")  # of which half would do


def die_spline(heights: Float64[ndarray, "*B K"]) -> CubicSpline:
    """Over the block at rest, from left to right."""
    knots = np.linspace(RIGHT - LENGTH, RIGHT, heights.shape[-1])
    return CubicSpline(knots, heights, axis=-1)


def block_nodes(resolution: int) -> Float64[Tensor, "2 n m"]:
    """At rest: node (i, j) is i to the left of the right end and j below the top."""
    spacing, rows = LENGTH / (resolution - 1), rows_of(resolution)
    x = RIGHT - spacing * torch.arange(resolution, dtype=torch.float64)
    y = TOP - spacing * torch.arange(rows, dtype=torch.float64)
    return torch.stack(torch.meshgrid(x, y, indexing="ij"))


def rows_of(resolution: int) -> int:
    """Nodes from top to bottom, for so many along the block."""
    return round((resolution - 1) * HEIGHT / LENGTH) + 1


def mesh_of(resolution: int, scheme: str) -> int:
    """Nodes along the block of the mesh on which so many points are solved for."""
    return (resolution - 1) * look_up("scheme", scheme, SCHEMES).finer + 1


def require_resolution(resolution: int) -> None:
    if resolution < 11 or resolution % 10 != 1:
        raise UserError(
            f"resolution {resolution} does not fit; Plasticity needs nodes along the block that make 10, 20, "
            "30, … elements: 11, 21, … 101"
        )


def _require_heights(heights: Given) -> None:
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
            first, f"the die begins at {lowest[first]:.4g} mm, inside the block; expected {TOP} or more"
        )


def _lowest(heights: Given) -> Float64[ndarray, "B"]:
    """Of each die, knots or not."""
    return die_spline(heights.double().cpu().numpy())(np.linspace(RIGHT - LENGTH, RIGHT, 1001)).min(axis=-1)


def _forge(
    heights: Float64[Tensor, "B K"],
    resolution: int,
    material: Material,
    step: float,
    frames: int,
    travel: float,
) -> tuple[Frames, Bool[Tensor, "B"]]:
    """The frames, and in which samples no element folded."""
    spacing = LENGTH / (resolution - 1)
    steps = ceil(INTERVAL / (step * material.stable_step(spacing)))
    nodes = block_nodes(resolution).to(heights.device).expand(len(heights), -1, -1, -1)
    body = body_at_rest(nodes, material, spacing=spacing, dt=INTERVAL / steps)
    press = Press(die_on(heights), body, speed=travel / DURATION)
    many = len(heights) > 1 and steps * (frames - 1) > MANY_STEPS[heights.device.type]
    batched = [*body.state, body.push, press.bottom, press.die.coefficients, press.die.first]
    advance = capture_step(press.step, [*body.state, press.lowered], fuse=batched if many else ())
    found, solved = [body.place.clone()], torch.ones(len(heights), dtype=torch.bool, device=heights.device)
    for _ in range(frames - 1):
        for count in range(steps):
            if count % WEIGH_EVERY == 0:
                body.weigh()
            advance()
        found.append(body.place.clone())
        solved &= (areas(body.shape) > 0).flatten(1).all(dim=1) & body.place.isfinite().flatten(1).all(dim=1)
    return torch.stack(found, dim=-1).permute(0, 2, 3, 4, 1), solved


def die_on(heights: Float64[Tensor, "B K"]) -> Die:
    """On the device of the heights."""
    batch, pieces = len(heights), heights.shape[1] - 1
    coefficients = torch.from_numpy(die_spline(heights.cpu().numpy()).c)  # 4, pieces, B
    flat = coefficients.permute(2, 1, 0).reshape(-1, 4).contiguous()
    first = pieces * torch.arange(batch)[:, None]
    return Die(flat.to(heights.device), first.to(heights.device), pieces)


class Press:
    """A die that moves down on a body with an even speed, and the plane under it."""

    def __init__(self, die: Die, body: Body, *, speed: float):
        self.die, self.body, self.speed = die, body, speed
        self.lowered = body.place.new_zeros(1)  # with an axis: else a compiler takes it for a constant
        self.bottom = body.place[:, 1, :, -1].clone()
        weights = body.place.new_full((body.place.shape[2],), 1 / 3)  # Simpson's rule on each edge
        weights[[0, -1]] = 1 / 6
        self.weights = PENALTY * body.material.young * weights

    def step(self) -> None:
        self.body.step(self.load, self.hold)
        self.lowered.add_(self.speed * self.body.dt)

    def load(self, place: Nodes, force: Nodes) -> None:
        """Where the top of the body is above the die, the die pushes back, at right angles to itself."""
        top, stiffness = place[..., 0], PENALTY * self.body.material.young
        force[..., 0].addcmul_(self.pressure(top), self.weights)
        beyond = pad(top, (1, 1), mode="replicate")
        middles = (beyond[..., 1:-2] + beyond[..., 2:-1]).mul_(9).sub_(beyond[..., :-3]).sub_(beyond[..., 3:])
        between = self.pressure(middles.mul_(1 / 16)).mul_(stiffness * (2 / 3) / 16)
        pushed = (
            9 * (pad(between, (1, 2)) + pad(between, (2, 1))) - pad(between, (0, 3)) - pad(between, (3, 0))
        )
        pushed[..., 1] += pushed[..., 0]
        pushed[..., -2] += pushed[..., -1]
        force[..., 0] += pushed[..., 1:-1]

    def pressure(self, points: Float64[Tensor, "B 2 P"]) -> Float64[Tensor, "B 2 P"]:
        """For a stiffness of one."""
        above, slope = self.die.gap(points[:, 0], points[:, 1] + self.lowered)
        share = above / (slope * slope).add_(1)
        return torch.stack([share * slope, -share], dim=1)

    def hold(self, place: Nodes, velocity: Nodes) -> None:
        """The lowest nodes slide on a plane."""
        place[:, 1, :, -1].copy_(self.bottom)
        velocity[:, 1, :, -1].zero_()
