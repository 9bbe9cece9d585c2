"""The turbulence model of Spalart and Allmaras, coupled with the flow in one matrix.

    u·∇ν̃ = c_b1 S̃ ν̃ - c_w1 f_w (ν̃/d)² + ∇·((ν + ν̃) ∇ν̃)/σ + c_b2/σ |∇ν̃|²

without the trip terms and f_t2. Convection is upwind of first order. Reference: Spalart and Allmaras (1992),
as on NASA's Turbulence Modeling Resource.

Axes: B flows, I × J cells; unknowns of a cell are p, u, v and ν̃.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.solvers.c_grid_cells import CellGrid, Sides, assemble, face_means, neighbours, sides
from linearno.solvers.incompressible import (
    PaddedFlow,
    Stream,
    flow_jacobians,
    flow_residual,
    pad_flow,
    wave_speeds,
)
from linearno.solvers.turbulence import (
    Courant,
    FaceFlow,
    Field,
    Linearisation,
    LinearSystem,
    State,
    face_flow,
    face_viscosity,
    flow_sides,
    pad_scalar,
    transport,
    transport_weights,
)

CB1, CB2, SIGMA, VON_KARMAN = 0.1355, 0.622, 2 / 3, 0.41
CW2, CW3, CV1 = 0.3, 2.0, 7.1
CW1 = CB1 / VON_KARMAN**2 + (1 + CB2) / SIGMA
LEAST_VORTICITY = 0.3  # lower bound of S̃ over the vorticity
MAX_RATIO = 10.0  # upper bound of r
FREE_STREAM = 3.0  # ν̃/ν
SCALE = 100.0  # typical ν̃/ν, which scales the matrix
LEAST_SHARE = 0.1  # of ν̃ that is left after a step
TINY = 1e-10

MIRRORED = (1.0, -1.0, -1.0, -1.0)  # ghost values at the wall over those of the cell
COPIED = (0.0, 1.0, 1.0, 1.0)  # at the outlets; the pressure is constant there


class SpalartAllmaras:
    """Equations of the march, with one 4 × 4 system."""

    courant = Courant(20.0, 1.3, 1000.0)
    first_steps_per_matrix = 1

    def linearise(self, grid: CellGrid, stream: Stream, state: State) -> Linearisation:
        """Residual and matrix at a state."""
        flow, turbulence = state[:, :3], state[:, 3]
        padded = pad_flow(grid, stream, flow)
        eddy = eddy_viscosity(turbulence, stream.viscosity)
        viscosity = face_viscosity(grid, stream, eddy)
        faces = face_flow(grid, padded)
        ghosts = pad_scalar(grid, turbulence, FREE_STREAM * stream.viscosity[:, None], -1.0)
        around = neighbours(*ghosts)
        weights = transport_weights(faces.flux, _diffusion(grid, stream, turbulence, ghosts))
        source, by_turbulence, by_vorticity = _source(
            turbulence, faces.vorticity.abs(), grid.distance, stream.viscosity[:, None, None]
        )
        balance = transport(weights, around, turbulence) - source * grid.volume
        residual = torch.cat([flow_residual(grid, flow, padded, viscosity), balance[:, None]], dim=1)

        def systems() -> list[LinearSystem]:
            own, other = _flow_rows(grid, stream, turbulence, padded, viscosity)
            _add_transport(own, other, faces, weights, around, turbulence, by_vorticity)
            mirrored, copied = state.new_tensor(MIRRORED), state.new_tensor(COPIED)
            blocks = assemble(grid.wall, own, other, mirrored, copied)
            blocks.own[:, 3, 3] += (-by_turbulence).clamp(min=0) * grid.volume
            scale = torch.ones_like(state)
            scale[:, 3] = SCALE * stream.viscosity[:, None, None]
            return [LinearSystem(slice(0, 4), blocks, scale)]

        return Linearisation(residual, wave_speeds(faces.along, faces.outward, grid)[0], systems)

    def limit(self, state: State, update: State) -> State:
        """Keep a share of ν̃."""
        new = state + update
        least = LEAST_SHARE * state[:, 3:].clamp(min=0)
        return torch.cat([new[:, :3], torch.maximum(new[:, 3:], least)], dim=1)

    def eddy_viscosity(self, grid: CellGrid, stream: Stream, state: State) -> Field:
        """ν̃ f_v1."""
        return eddy_viscosity(state[:, 3], stream.viscosity)


def eddy_viscosity(turbulence: Field, viscosity: Float[Tensor, "B"]) -> Field:
    """ν̃ f_v1, with the damping near walls."""
    positive = turbulence.clamp(min=0)
    cube = (positive / viscosity[:, None, None]) ** 3
    return positive * cube / (cube + CV1**3)


def _eddy_slope(turbulence: Field, viscosity: Float[Tensor, "B"]) -> Field:
    """Derivative of the eddy viscosity with respect to ν̃."""
    cube = (turbulence.clamp(min=0) / viscosity[:, None, None]) ** 3
    return cube * (cube + 4 * CV1**3) / (cube + CV1**3) ** 2


def _diffusion(grid: CellGrid, stream: Stream, turbulence: Field, ghosts: tuple[Tensor, Tensor]) -> Sides:
    """Diffusion at the faces, with c_b2 |∇ν̃|² = c_b2 (∇·(ν̃ ∇ν̃) - ν̃ ∇²ν̃) in the same form; not negative."""
    viscosity = stream.viscosity[:, None, None]
    along, outward = (viscosity + mean.clamp(min=0) for mean in face_means(*ghosts))
    at_faces = sides(along * grid.along_conductance, outward * grid.outward_conductance, oriented=False)
    conductance = sides(grid.along_conductance, grid.outward_conductance, oriented=False)
    own = CB2 * (viscosity + turbulence.clamp(min=0))
    before, after, below, above = (
        ((1 + CB2) * face - own * size).clamp(min=0) / SIGMA
        for face, size in zip(at_faces, conductance, strict=True)
    )
    return before, after, below, above


def _source(
    turbulence: Field, vorticity: Field, distance: Field, viscosity: Tensor
) -> tuple[Field, Field, Field]:
    """Production minus destruction, and its derivatives with respect to ν̃ and the vorticity."""
    with torch.enable_grad():
        inputs = turbulence.detach().requires_grad_(), vorticity.detach().requires_grad_()
        positive = inputs[0].clamp(min=0)
        ratio = positive / viscosity
        damping = ratio**3 / (ratio**3 + CV1**3)
        scaled = positive / (VON_KARMAN * distance) ** 2
        strain = inputs[1] + scaled * (1 - ratio / (1 + ratio * damping))
        strain = torch.maximum(strain, LEAST_VORTICITY * inputs[1]) + TINY
        r = (scaled / strain).clamp(max=MAX_RATIO)
        g = r + CW2 * (r**6 - r)
        fw = g * ((1 + CW3**6) / (g**6 + CW3**6)) ** (1 / 6)
        value = CB1 * strain * positive - CW1 * fw * (positive / distance) ** 2
        by_turbulence, by_vorticity = torch.autograd.grad(value.sum(), inputs)
    return value.detach(), by_turbulence, by_vorticity


def _flow_rows(
    grid: CellGrid,
    stream: Stream,
    turbulence: Field,
    padded: PaddedFlow,
    viscosity: tuple[Tensor, Tensor],
) -> tuple[Sides, Sides]:
    """Derivatives of the flow's equations, per face, in blocks with the row and column of ν̃."""
    slope = _eddy_slope(turbulence, stream.viscosity)
    slopes = neighbours(*pad_scalar(grid, slope, slope[..., -1], 1.0))
    u_along, u_outward = padded.velocity()
    jumps = sides(
        u_along.diff(dim=2) * grid.along_conductance[:, None],
        u_outward.diff(dim=3) * grid.outward_conductance[:, None],
    )
    own: list[Tensor] = []
    other: list[Tensor] = []
    for flow_own, flow_other, jump, near in zip(
        *flow_sides(flow_jacobians(grid, padded, viscosity)), jumps, slopes, strict=True
    ):
        for blocks, small, factor in ((own, flow_own, slope), (other, flow_other, near)):
            block = small.new_zeros(len(small), 4, 4, *small.shape[3:])
            block[:, :3, :3] = small
            block[:, 1:3, 3] = -jump / 2 * factor[:, None]
            blocks.append(block)
    return (own[0], own[1], own[2], own[3]), (other[0], other[1], other[2], other[3])


def _add_transport(
    own: Sides,
    other: Sides,
    faces: FaceFlow,
    weights: Sides,
    around: Sides,
    turbulence: Field,
    by_vorticity: Field,
) -> None:
    """Add the row of ν̃: derivatives with respect to ν̃, and to the velocity by convection and vorticity."""
    spin = -by_vorticity * faces.vorticity.sign() / 2
    for mine, near, flux, area, weight, value in zip(
        own, other, faces.flux, faces.area, weights, around, strict=True
    ):
        mine[:, 3, 3] -= weight
        near[:, 3, 3] += weight
        inflow = torch.where(flux < 0, (value - turbulence) / 2, 0.0)
        by_velocity = inflow[:, None] * area + spin[:, None] * torch.stack([-area[:, 1], area[:, 0]], dim=1)
        mine[:, 3, 1:3] += by_velocity
        near[:, 3, 1:3] += by_velocity
