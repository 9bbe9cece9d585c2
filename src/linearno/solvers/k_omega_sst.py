"""The k-ω SST turbulence model of Menter, started from Spalart–Allmaras.

    u·∇k = P_k - β* k ω + ∇·((ν + σ_k ν_t) ∇k)
    u·∇ω = P_ω - β ω² + ∇·((ν + σ_ω ν_t) ∇ω) + 2 (1 - F_1) σ_ω2/ω ∇k·∇ω
    ν_t  = a_1 k / max(a_1 ω, Ω F_2)

with production by vorticity. Convection is upwind of first order. The flow and the pair (k, ω) are solved one
after the other in each step: solved together, ω falls to zero behind the trailing edge. Reference: Menter
(1994, 2003), as on NASA's Turbulence Modeling Resource.

Axes: B flows, I × J cells; unknowns of a cell are p, u, v, k and ω.
"""

from typing import NamedTuple

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
from linearno.solvers.spalart_allmaras import eddy_viscosity
from linearno.solvers.turbulence import (
    Courant,
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

BETA_STAR, A1, PRODUCTION_LIMIT = 0.09, 0.31, 10.0
SIGMA_K, SIGMA_OMEGA = (0.85, 1.0), (0.5, 0.856)  # near the wall, and outside
BETA, GAMMA = (0.075, 0.0828), (5 / 9, 0.44)
MAX_ARGUMENT = 10.0  # of the blending functions
LEAST_CROSS = 1e-10  # of the cross diffusion in F_1
FREE_OMEGA, FREE_EDDIES = 5.0, 0.01  # far field: ω in units of speed over chord, and ν_t/ν
WALL_STIFFNESS = 1e6  # imposes ω in the cells on the wall
START_VORTICITY, START_LENGTH, MAX_START_K = 0.3, 0.002, 0.02  # ω and k from the eddy viscosity
K_SHARE, K_FACTOR, K_STEP = 0.1, 3.0, 1e-4  # limits of k in a step
OMEGA_SHARE, OMEGA_FACTOR = 0.3, 5.0  # limits of ω
LEAST_K = 1e-14
LEAST_SCALE = 1e-8  # of k in the matrix

MIRRORED_FLOW, COPIED_FLOW = (1.0, -1.0, -1.0), (0.0, 1.0, 1.0)
MIRRORED, COPIED = (-1.0, 1.0), (1.0, 1.0)  # of k and ω


class Sources(NamedTuple):
    """Eddy viscosity, sources and diffusivities of the cells.

    Args:
        eddy: eddy viscosity.
        k: production minus destruction of k.
        omega: the same of ω, with cross diffusion.
        sigma: factors of the eddy viscosity in the diffusion of k and ω.
        k_slopes: derivatives of `k` with respect to k and ω.
        omega_slope: derivative of `omega` with respect to ω.
    """

    eddy: Field
    k: Field
    omega: Field
    sigma: tuple[Field, Field]
    k_slopes: tuple[Field, Field]
    omega_slope: Field


class KOmegaSST:
    """Equations of the march, with a 3 × 3 system of the flow and a 2 × 2 system of k and ω."""

    courant = Courant(20.0, 1.25, 200.0)
    first_steps_per_matrix = 2

    def linearise(self, grid: CellGrid, stream: Stream, state: State) -> Linearisation:
        """Residual and matrix at a state."""
        flow, padded = state[:, :3], pad_flow(grid, stream, state[:, :3])
        faces = face_flow(grid, padded)
        ghosts = _pad(grid, stream, state)
        source = _sources(grid, stream, state, faces.vorticity.abs(), ghosts)
        viscosity = face_viscosity(grid, stream, source.eddy)
        weights, balances = [], []
        for at, (ghost, sigma, production) in enumerate(
            zip(ghosts, source.sigma, (source.k, source.omega), strict=True)
        ):
            diffusion = sides(*face_viscosity(grid, stream, sigma * source.eddy), oriented=False)
            weights.append(transport_weights(faces.flux, diffusion))
            values = state[:, 3 + at]
            balances.append(transport(weights[-1], neighbours(*ghost), values) - production * grid.volume)
        balances[1] = _impose_omega(grid, stream, state, balances[1])
        residual = torch.cat(
            [flow_residual(grid, flow, padded, viscosity), torch.stack(balances, dim=1)], dim=1
        )
        along, outward = wave_speeds(faces.along, faces.outward, grid)

        def systems() -> list[LinearSystem]:
            return [
                _flow_system(grid, padded, viscosity, flow),
                _turbulence_system(grid, state, weights, source),
            ]

        return Linearisation(residual, torch.maximum(along, outward), systems)

    def limit(self, state: State, update: State) -> State:
        """Bound the changes of k and ω."""
        k, omega = state[:, 3:4], state[:, 4:5]
        new_k, new_omega = k + update[:, 3:4], omega + update[:, 4:5]
        new_k = torch.maximum(torch.minimum(new_k, K_FACTOR * k + K_STEP), K_SHARE * k).clamp(min=LEAST_K)
        new_omega = torch.maximum(torch.minimum(new_omega, OMEGA_FACTOR * omega), OMEGA_SHARE * omega)
        return torch.cat([state[:, :3] + update[:, :3], new_k, new_omega], dim=1)

    def eddy_viscosity(self, grid: CellGrid, stream: Stream, state: State) -> Field:
        """ν_t."""
        vorticity = face_flow(grid, pad_flow(grid, stream, state[:, :3])).vorticity.abs()
        return _sources(grid, stream, state, vorticity, _pad(grid, stream, state)).eddy


def start_from_spalart_allmaras(
    grid: CellGrid, stream: Stream, state: Float[Tensor, "B 4 I J"]
) -> Float[Tensor, "B 5 I J"]:
    """State with k and ω from that with ν̃: the same eddy viscosity."""
    vorticity = face_flow(grid, pad_flow(grid, stream, state[:, :3])).vorticity
    eddy = eddy_viscosity(state[:, 3], stream.viscosity)
    viscous = 6 * stream.viscosity[:, None, None] / (BETA[0] * grid.distance**2)
    squared = (vorticity / START_VORTICITY) ** 2 + (eddy / START_LENGTH**2) ** 2 + viscous**2
    omega = squared.sqrt().clamp(min=FREE_OMEGA)
    omega[..., 0] = torch.where(grid.wall, viscous[..., 0], omega[..., 0])
    k = (eddy * omega).clamp(max=MAX_START_K) + _free_k(stream)[..., None]
    return torch.cat([state[:, :3], k[:, None], omega[:, None]], dim=1)


def _free_k(stream: Stream) -> Tensor:
    return FREE_EDDIES * FREE_OMEGA * stream.viscosity[:, None]


def _pad(grid: CellGrid, stream: Stream, state: State) -> list[tuple[Tensor, Tensor]]:
    """k and ω with ghost cells."""
    free_omega = state.new_full((1, 1), FREE_OMEGA)
    return [
        pad_scalar(grid, state[:, 3], _free_k(stream), MIRRORED[0]),
        pad_scalar(grid, state[:, 4], free_omega, MIRRORED[1]),
    ]


def _gradient(grid: CellGrid, ghosts: tuple[Tensor, Tensor]) -> Tensor:
    """Gradient (B, 2, I, J) by Gauss's theorem."""
    along, outward = face_means(*ghosts)
    total = (along[:, None] * grid.along).diff(dim=2) + (outward[:, None] * grid.outward).diff(dim=3)
    return total / grid.volume[:, None]


def _sources(
    grid: CellGrid, stream: Stream, state: State, vorticity: Field, ghosts: list[tuple[Tensor, Tensor]]
) -> Sources:
    cross = (_gradient(grid, ghosts[0]) * _gradient(grid, ghosts[1])).sum(dim=1)
    distance, viscosity = grid.distance, stream.viscosity[:, None, None]
    inner, outer = _blending(state[:, 3], state[:, 4], cross, distance, viscosity)

    def blend(pair: tuple[float, float]) -> Field:
        return inner * pair[0] + (1 - inner) * pair[1]

    with torch.enable_grad():
        k, omega = (state[:, at].detach().requires_grad_() for at in (3, 4))
        limiter = torch.maximum(A1 * omega, vorticity * outer)
        eddy = A1 * k / limiter
        destruction = BETA_STAR * k * omega
        production = torch.minimum(eddy * vorticity**2, PRODUCTION_LIMIT * destruction)
        bound = PRODUCTION_LIMIT * BETA_STAR * omega * limiter / A1
        omega_production = blend(GAMMA) * torch.minimum(vorticity**2, bound)
        cross_diffusion = 2 * (1 - inner) * SIGMA_OMEGA[1] * cross / omega
        k_source = production - destruction
        omega_source = omega_production - blend(BETA) * omega**2 + cross_diffusion
        by_k, by_omega = torch.autograd.grad(k_source.sum(), (k, omega), retain_graph=True)
        (omega_slope,) = torch.autograd.grad(omega_source.sum(), (omega,))
    return Sources(
        eddy.detach(), k_source.detach(), omega_source.detach(), (blend(SIGMA_K), blend(SIGMA_OMEGA)),
        (by_k, by_omega), omega_slope,
    )  # fmt: skip


def _blending(
    k: Field, omega: Field, cross: Field, distance: Field, viscosity: Tensor
) -> tuple[Field, Field]:
    """F_1 and F_2: 1 near the wall, 0 outside of the boundary layer."""
    eddies = k.clamp(min=LEAST_K).sqrt() / (BETA_STAR * omega * distance)
    viscous = 500 * viscosity / (distance**2 * omega)
    positive_cross = (2 * SIGMA_OMEGA[1] * cross / omega).clamp(min=LEAST_CROSS)
    limited = torch.minimum(
        torch.maximum(eddies, viscous), 4 * SIGMA_OMEGA[1] * k / (positive_cross * distance**2)
    )
    inner = torch.tanh(limited.clamp(max=MAX_ARGUMENT) ** 4)
    return inner, torch.tanh(torch.maximum(2 * eddies, viscous).clamp(max=MAX_ARGUMENT) ** 2)


def _impose_omega(grid: CellGrid, stream: Stream, state: State, balance: Field) -> Field:
    """ω = 6 ν / (β_1 d²) in the cells on the wall."""
    target = 6 * stream.viscosity[:, None] / (BETA[0] * grid.distance[..., 0] ** 2)
    stiff = (state[:, 4, :, 0] - target) * grid.volume[..., 0] * WALL_STIFFNESS
    first = torch.where(grid.wall, stiff, balance[..., 0])
    return torch.cat([first[..., None], balance[..., 1:]], dim=-1)


def _flow_system(
    grid: CellGrid, padded: PaddedFlow, viscosity: tuple[Tensor, Tensor], flow: State
) -> LinearSystem:
    own, other = flow_sides(flow_jacobians(grid, padded, viscosity))
    mirrored, copied = flow.new_tensor(MIRRORED_FLOW), flow.new_tensor(COPIED_FLOW)
    blocks = assemble(grid.wall, own, other, mirrored, copied)
    return LinearSystem(slice(0, 3), blocks, torch.ones_like(flow))


def _turbulence_system(grid: CellGrid, state: State, weights: list[Sides], source: Sources) -> LinearSystem:
    """Transport of k and ω, their sinks, and the derivative of k's source with respect to ω."""
    diagonal = [torch.stack(pair, dim=1) for pair in zip(*weights, strict=True)]
    other = [torch.diag_embed(part.movedim(1, -1)).movedim((-2, -1), (1, 2)) for part in diagonal]
    neighbour: Sides = (other[0], other[1], other[2], other[3])
    own: Sides = (-other[0], -other[1], -other[2], -other[3])
    blocks = assemble(grid.wall, own, neighbour, state.new_tensor(MIRRORED), state.new_tensor(COPIED))
    blocks.own[:, 0, 0] += (-source.k_slopes[0]).clamp(min=0) * grid.volume
    blocks.own[:, 1, 1] += (-source.omega_slope).clamp(min=0) * grid.volume
    blocks.own[:, 0, 1] -= source.k_slopes[1] * grid.volume
    for block in blocks:
        block[:, 1, :, :, 0] *= ~grid.wall
    blocks.own[:, 1, 1, :, 0] += grid.wall * grid.volume[..., 0] * WALL_STIFFNESS
    scale = torch.stack([state[:, 3].clamp(min=LEAST_SCALE), state[:, 4]], dim=1)
    return LinearSystem(slice(3, 5), blocks, scale)
