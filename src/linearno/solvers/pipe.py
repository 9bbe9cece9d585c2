"""Steady flow through a channel of any shape, many samples at once, and the recipe of the Pipe benchmark.

Axes: B samples, n × m nodes along and across. Everything is float64 on the device of its input; what comes
out for a sample does not depend on the others of its batch.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy import ndarray
from scipy.interpolate import CubicHermiteSpline
from torch import Tensor
from torch.nn.functional import interpolate

from linearno.core.errors import SampleError, UserError
from linearno.solvers.taylor_hood import Flow, Nodes, cross, mesh_on, newton_step, require_unfolded

Given = Float[Tensor, "..."]  # from a user, who gets a line about a wrong shape

VISCOSITY = 0.005
LENGTH, SPEED = 10.0, 0.25  # of a pipe one unit wide, and at the middle of its inlet
PIECES = 4  # of the centre line
TOLERANCE = 1e-6  # on a Newton step, relative: the next one would be about its square
MAX_STEPS = 12
MAX_DRAWS = 10
SMALLEST = 5
log = logging.getLogger(__name__)


def solve_pipe(nodes: Given, *, speed: float = SPEED, viscosity: float = VISCOSITY) -> Flow:
    """The flow that enters along x with 4 `speed` t (1 − t), t from 0 to 1 across the inlet.

    `nodes` (B, n, m, 2) are the places (x, y) of a grid that runs along the channel, then across it from
    right to left: the inlet is its first row, the outlet its last one. Newton's method starts from this
    profile, bent along the grid lines.
    """
    _require_nodes(nodes)
    return solve_flow(nodes, poiseuille(nodes.double(), speed), viscosity=viscosity)


def solve_flow(nodes: Given, start: Given, *, viscosity: float, force: Given | None = None) -> Flow:
    """Solve  u·∇u − ν Δu + ∇p = f,  ∇·u = 0  from `start`, whose values at the inlet and on the walls stay.

    At the outlet ν ∂u/∂n = p n. Taylor–Hood elements, quadratic and curved as their nodes are, bilinear in
    the pressure: order 3 for the velocity and 2 for the pressure in L2; the flux through every column of
    elements is the same to rounding. Newton's method with a direct solver.
    """
    _require_nodes(nodes)
    if start.shape != nodes.shape or not (viscosity > 0 and start.isfinite().all()):
        raise UserError(
            f"expected a viscosity above zero and a finite velocity at all nodes {tuple(nodes.shape)}, "
            f"got viscosity {viscosity:g} and a velocity {tuple(start.shape)}"
        )
    if force is not None and (force.shape != nodes.shape or not force.isfinite().all()):
        raise UserError(
            f"expected a finite force at all nodes {tuple(nodes.shape)}, got {tuple(force.shape)}"
        )
    flow, solved = _newton(
        nodes.double(), start.double(), viscosity, None if force is None else force.double()
    )
    if not solved.all():
        first = int((~solved).nonzero()[0])
        raise SampleError(
            first,
            f"the flow did not converge in {MAX_STEPS} Newton steps with viscosity {viscosity:g}; "
            "expected a slower flow, a larger viscosity or a smoother channel",
        )
    return flow


def pipe_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> tuple[Float[ndarray, "B n n"], Float[ndarray, "B n n"], Float[ndarray, "B 3 n n"], Float[ndarray, "B"]]:
    """`X`, `Y` and `Q` = (ux, uy, p) at the nodes of random pipes, and at which draw each of them was solved.

    A sample for each generator. The pipes are drawn on the CPU. One whose flow is not found is drawn again,
    from the same generator.
    """
    require_resolution(resolution)
    places = np.empty((len(rngs), resolution, resolution, 2))
    fields = np.empty((len(rngs), 3, resolution, resolution))
    draws, left = np.zeros(len(rngs)), np.arange(len(rngs))
    for draw in range(1, MAX_DRAWS + 1):
        places[left] = np.stack([pipe_nodes(*draw_centre_line(rngs[i]), resolution) for i in left.tolist()])
        nodes = torch.from_numpy(places[left]).to(device)
        flow, solved = _newton(nodes, poiseuille(nodes, SPEED), VISCOSITY, None)
        fields[left], draws[left] = stacked(flow).cpu().numpy(), draw
        left = left[~solved.cpu().numpy()]
        if not len(left):
            return places[..., 0], places[..., 1], fields, draws
        log.warning("no flow found for %d of %d pipes at draw %d; drawn again", len(left), len(rngs), draw)
    raise SampleError(int(left[0]), f"no flow found for {MAX_DRAWS} random pipes one after the other")


def draw_centre_line(rng: np.random.Generator) -> tuple[Float64[ndarray, "5"], Float64[ndarray, "5"]]:
    """Heights in [−1, 1], the first of them zero, and slopes of ±2 a piece, at the ends of four pieces."""
    heights = np.append(0.0, rng.uniform(-1, 1, PIECES))
    return heights, rng.uniform(-2, 2, PIECES + 1) / (LENGTH / PIECES)


def pipe_nodes(
    heights: Float64[ndarray, "ends"], slopes: Float64[ndarray, "ends"], resolution: int
) -> Float64[ndarray, "n n 2"]:
    """A grid around the cubic Hermite spline with these heights and slopes dy/dx, half a unit up and down."""
    x = np.linspace(0, LENGTH, resolution)
    centre = CubicHermiteSpline(np.linspace(0, LENGTH, len(heights)), heights, slopes)(x)
    across = np.linspace(-0.5, 0.5, resolution)
    return np.stack(np.broadcast_arrays(x[:, None], centre[:, None] + across), axis=-1)


def require_resolution(resolution: int) -> None:
    if resolution < SMALLEST or (resolution - 1) & (resolution - 2):
        raise UserError(
            f"resolution {resolution} does not fit; Pipe needs a power of two and one more: 5, 9, 17, … 129"
        )


def poiseuille(nodes: Nodes, speed: float) -> Nodes:
    """4 `speed` t (1 − t) along x at the inlet; from there with the same flux between any two grid lines."""
    along, across = (torch.gradient(nodes, dim=axis, edge_order=2)[0] for axis in (1, 2))
    inlet = (nodes[:, 0] - nodes[:, 0, :1]).norm(dim=-1)  # distance from one wall
    t = inlet / inlet[:, -1:]
    profile = 4 * speed * t * (1 - t)
    flux = (profile * across[:, 0].norm(dim=-1))[:, None]
    velocity = along * (flux / cross(along, across))[..., None]
    velocity[:, 0] = torch.stack([profile, torch.zeros_like(profile)], dim=-1)
    return velocity


def stacked(flow: Flow) -> Float64[Tensor, "B 3 n m"]:
    """ux, uy and p at the nodes; between corners the pressure is bilinear."""
    velocity, shape = flow.velocity.permute(0, 3, 1, 2), list(flow.velocity.shape[1:3])
    pressure = interpolate(flow.pressure[:, None], shape, mode="bilinear", align_corners=True)
    return torch.cat([velocity, pressure], dim=1)


def _newton(
    nodes: Nodes, start: Nodes, viscosity: float, force: Nodes | None
) -> tuple[Flow, Bool[Tensor, "B"]]:
    """The flows, and which of them are found. One that is found stays as it is while others go on."""
    batch, n, m, _ = nodes.shape
    flow = Flow(start.clone(), start.new_zeros(batch, n // 2 + 1, m // 2 + 1))
    force = torch.zeros_like(start) if force is None else force
    active = torch.arange(batch, device=nodes.device)
    for _ in range(MAX_STEPS):
        before = Flow(flow.velocity[active], flow.pressure[active])
        after = newton_step(mesh_on(nodes[active]), before, viscosity=viscosity, force=force[active])
        flow.velocity[active], flow.pressure[active] = after
        step = (after.velocity - before.velocity).flatten(1).abs().amax(dim=1)
        active = active[~(step <= TOLERANCE * after.velocity.flatten(1).abs().amax(dim=1))]  # NaN goes on
        if not len(active):
            break
    solved = torch.ones(batch, dtype=torch.bool, device=nodes.device)
    solved[active] = False
    return flow, solved


def _require_nodes(nodes: Given) -> None:
    counts = [(size - 1) // 2 for size in nodes.shape[1:3]]
    fits = nodes.dim() == 4 and nodes.shape[-1] == 2 and all(size % 2 for size in nodes.shape[1:3])
    if not fits or any(count < 2 or count & (count - 1) for count in counts):
        raise UserError(
            f"expected nodes (samples, n, m, 2) with n and m from 5, 9, 17, 33, …, got {tuple(nodes.shape)}"
        )
    finite = nodes.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        raise SampleError(int((~finite).nonzero()[0]), "expected finite nodes, got NaN or infinity")
    mesh_on(nodes.double())
    require_unfolded(nodes.double())
