"""Steady incompressible flow through curved channels, in batches, and random samples of the Pipe benchmark.

Axes: B samples, n × m nodes along and across. Computes in float64 on the device of the input; results do not
depend on the other samples of a batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy import ndarray
from scipy.interpolate import CubicHermiteSpline
from torch import Tensor
from torch.nn.functional import interpolate

from linearno.core.errors import SampleError, UserError
from linearno.solvers.redraw import Fields, solve_with_redraws
from linearno.solvers.taylor_hood import Flow, Nodes, build_mesh, cross, newton_step, require_unfolded

Unchecked = Float[Tensor, "..."]  # user input, checked with a one-line error

VISCOSITY = 0.005
LENGTH = 10.0  # of a pipe of width 1
INLET_SPEED = 0.25  # at the middle of the inlet
PIECES = 4  # of the spline of the centre line
TOLERANCE = 1e-6  # on the relative Newton step; convergence is quadratic
MAX_NEWTON_STEPS = 12
MAX_DRAWS = 10
MIN_POINTS = 5  # a side


def solve_pipe(nodes: Unchecked, *, speed: float = INLET_SPEED, viscosity: float = VISCOSITY) -> Flow:
    """Steady flow with inlet velocity 4 `speed` t (1 − t) along x, t from 0 to 1 across the inlet.

    Newton's method starts from this profile, continued along the grid lines (see `poiseuille`).

    Args:
        nodes: (B, n, m, 2), points (x, y) of a grid that runs along the channel, then across it from right to
            left: the inlet is its first row, the outlet its last one.
        speed: velocity at the middle of the inlet.
        viscosity: ν.
    """
    _require_nodes(nodes)
    return solve_flow(nodes, poiseuille(nodes.double(), speed), viscosity=viscosity)


def solve_flow(
    nodes: Unchecked, start: Unchecked, *, viscosity: float, force: Unchecked | None = None
) -> Flow:
    """Solve  u·∇u − ν Δu + ∇p = f,  ∇·u = 0,  with ν ∂u/∂n = p n at the outlet.

    Isoparametric Taylor–Hood elements, quadratic in the velocity and bilinear in the pressure: order 3 for
    the velocity and 2 for the pressure in L2; the flux through all columns of elements is equal up to
    rounding. Newton's method with a direct solver.

    Args:
        nodes: (B, n, m, 2), as in `solve_pipe`.
        start: initial velocity (B, n, m, 2), which fixes the velocity at the inlet and on the walls.
        viscosity: ν.
        force: f at the nodes (B, n, m, 2); zero by default.
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
        raise SampleError(
            int((~solved).nonzero()[0]),
            f"the flow did not converge in {MAX_NEWTON_STEPS} Newton steps with viscosity {viscosity:g}; "
            "expected a slower flow, a larger viscosity or a smoother channel",
        )
    return flow


def pipe_samples(rngs: Sequence[np.random.Generator], resolution: int, device: torch.device) -> Fields:
    """Random pipes and the flow through them, a sample for each generator.

    Pipes are drawn on the CPU. A pipe whose flow does not converge is drawn again from its generator.

    Args:
        rngs: generators of the B samples.
        resolution: n, number of nodes a side.
        device: device that solves.

    Returns:
        `X`, `Y` (B, n, n), nodes; `Q` (B, 3, n, n), velocity and pressure; `draws` (B,), the draw that was
        solved.
    """
    require_resolution(resolution)

    def solve(samples: list[int]) -> tuple[Fields, Bool[ndarray, "b"]]:
        nodes = np.stack([pipe_nodes(*draw_centre_line(rngs[i]), resolution) for i in samples])
        on_device = torch.from_numpy(nodes).to(device)
        flow, solved = _newton(on_device, poiseuille(on_device, INLET_SPEED), VISCOSITY, None)
        fields = {"X": nodes[..., 0], "Y": nodes[..., 1], "Q": flow_fields(flow).cpu().numpy()}
        return fields, solved.cpu().numpy()

    return solve_with_redraws(rngs, solve, max_draws=MAX_DRAWS, problem="no flow found for {} pipes")


def draw_centre_line(rng: np.random.Generator) -> tuple[Float64[ndarray, "5"], Float64[ndarray, "5"]]:
    """Random heights in [−1, 1] (the first is 0) and slopes within ±2 per piece at the ends of the pieces."""
    heights = np.append(0.0, rng.uniform(-1, 1, PIECES))
    return heights, rng.uniform(-2, 2, PIECES + 1) / (LENGTH / PIECES)


def pipe_nodes(
    heights: Float64[ndarray, "ends"], slopes: Float64[ndarray, "ends"], resolution: int
) -> Float64[ndarray, "n n 2"]:
    """Grid of height 1 around the cubic Hermite spline with these heights and slopes."""
    x = np.linspace(0, LENGTH, resolution)
    centre = CubicHermiteSpline(np.linspace(0, LENGTH, len(heights)), heights, slopes)(x)
    across = np.linspace(-0.5, 0.5, resolution)
    return np.stack(np.broadcast_arrays(x[:, None], centre[:, None] + across), axis=-1)


def require_resolution(resolution: int) -> None:
    if resolution < MIN_POINTS or (resolution - 1) & (resolution - 2):
        raise UserError(
            f"resolution {resolution} does not fit; expected a power of two plus one: 5, 9, 17, … 129"
        )


def poiseuille(nodes: Nodes, speed: float) -> Nodes:
    """4 `speed` t (1 − t) along x at the inlet, continued with constant flux between any two grid lines."""
    along, across = (torch.gradient(nodes, dim=axis, edge_order=2)[0] for axis in (1, 2))
    inlet = (nodes[:, 0] - nodes[:, 0, :1]).norm(dim=-1)  # distance from the right wall
    t = inlet / inlet[:, -1:]
    profile = 4 * speed * t * (1 - t)
    flux = (profile * across[:, 0].norm(dim=-1))[:, None]
    velocity = along * (flux / cross(along, across))[..., None]
    velocity[:, 0] = torch.stack([profile, torch.zeros_like(profile)], dim=-1)
    return velocity


def flow_fields(flow: Flow) -> Float64[Tensor, "B 3 n m"]:
    """ux, uy and p at the nodes; the pressure is interpolated bilinearly between the corners."""
    velocity, shape = flow.velocity.permute(0, 3, 1, 2), list(flow.velocity.shape[1:3])
    pressure = interpolate(flow.pressure[:, None], shape, mode="bilinear", align_corners=True)
    return torch.cat([velocity, pressure], dim=1)


def _newton(
    nodes: Nodes, start: Nodes, viscosity: float, force: Nodes | None
) -> tuple[Flow, Bool[Tensor, "B"]]:
    """The flows, and which converged. Converged flows do not change while others iterate."""
    batch, n, m, _ = nodes.shape
    flow = Flow(start.clone(), start.new_zeros(batch, n // 2 + 1, m // 2 + 1))
    force = torch.zeros_like(start) if force is None else force
    active = torch.arange(batch, device=nodes.device)
    for _ in range(MAX_NEWTON_STEPS):
        before = Flow(flow.velocity[active], flow.pressure[active])
        after = newton_step(build_mesh(nodes[active]), before, viscosity=viscosity, force=force[active])
        flow.velocity[active], flow.pressure[active] = after
        step = (after.velocity - before.velocity).flatten(1).abs().amax(dim=1)
        active = active[
            ~(step <= TOLERANCE * after.velocity.flatten(1).abs().amax(dim=1))
        ]  # NaN stays active
        if not len(active):
            break
    solved = torch.ones(batch, dtype=torch.bool, device=nodes.device)
    solved[active] = False
    return flow, solved


def _require_nodes(nodes: Unchecked) -> None:
    counts = [(size - 1) // 2 for size in nodes.shape[1:3]]
    fits = nodes.dim() == 4 and nodes.shape[-1] == 2 and all(size % 2 for size in nodes.shape[1:3])
    if not fits or any(count < 2 or count & (count - 1) for count in counts):
        raise UserError(
            f"expected nodes (samples, n, m, 2) with n and m from 5, 9, 17, 33, …, got {tuple(nodes.shape)}"
        )
    finite = nodes.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        raise SampleError(int((~finite).nonzero()[0]), "expected finite nodes, got NaN or infinity")
    build_mesh(nodes.double())
    require_unfolded(nodes.double())
