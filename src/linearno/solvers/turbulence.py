"""What turbulence models share: vorticity, upwind transport and the interface to the march.

Axes: B flows, I × J cells of a C-grid, m unknowns of a cell: pressure, velocity along x and y, turbulence.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.solvers.c_grid_cells import (
    CellGrid,
    Sides,
    face_means,
    pad_along,
    pad_outward,
    sides,
)
from linearno.solvers.incompressible import PaddedFlow, Stream
from linearno.solvers.linalg.c_grid_elimination import StencilBlocks

Field = Float[Tensor, "B I J"]
State = Float[Tensor, "B m I J"]


class LinearSystem(NamedTuple):
    """Matrix of some of the unknowns.

    Args:
        channels: these unknowns.
        blocks: derivatives (B, m, m, I, J) of the residual with respect to a cell and its neighbours.
        scale: typical size (B, m, I, J) of the unknowns.
    """

    channels: slice
    blocks: StencilBlocks
    scale: Float[Tensor, "B m I J"]


class Linearisation(NamedTuple):
    """Residual and matrix at a state.

    Args:
        residual: net outflow of mass, momentum and turbulence.
        rate: wave speeds (B, I, J): volume over time step for a Courant number of 1.
        systems: builds the matrices, which are solved one by one.
    """

    residual: State
    rate: Field
    systems: Callable[[], list[LinearSystem]]


class Courant(NamedTuple):
    """Law of the Courant number: `start`, times `growth` per step up to `largest`."""

    start: float
    growth: float
    largest: float


@runtime_checkable
class TurbulenceModel(Protocol):
    """Equations of a march.

    Attributes:
        courant: law of the Courant number.
        first_steps_per_matrix: steps that share a matrix until the flow approaches its steady state.
    """

    courant: Courant
    first_steps_per_matrix: int

    def linearise(self, grid: CellGrid, stream: Stream, state: State) -> Linearisation:
        """Residual and matrix at a state."""
        ...

    def limit(self, state: State, update: State) -> State:
        """State after a step, within the limits of the turbulence."""
        ...

    def eddy_viscosity(self, grid: CellGrid, stream: Stream, state: State) -> Field:
        """Eddy viscosity in units of speed times chord."""
        ...


class FaceFlow(NamedTuple):
    """Velocity at the four faces of each cell.

    Args:
        area: area vectors out of the cell.
        flux: u·S out of the cell.
        vorticity: of the cell.
        along: u·S at the faces along the grid.
        outward: u·S at the other faces.
    """

    area: Sides
    flux: Sides
    vorticity: Field
    along: Tensor
    outward: Tensor


def face_flow(grid: CellGrid, padded: PaddedFlow) -> FaceFlow:
    """Means of the velocity at the faces, and the vorticity by Gauss's theorem."""
    u_along, u_outward = face_means(*padded.velocity())
    spin_along = u_along[:, 1] * grid.along[:, 0] - u_along[:, 0] * grid.along[:, 1]
    spin_outward = u_outward[:, 1] * grid.outward[:, 0] - u_outward[:, 0] * grid.outward[:, 1]
    vorticity = (spin_along.diff(dim=1) + spin_outward.diff(dim=2)) / grid.volume
    along, outward = (u_along * grid.along).sum(dim=1), (u_outward * grid.outward).sum(dim=1)
    return FaceFlow(sides(grid.along, grid.outward), sides(along, outward), vorticity, along, outward)


def pad_scalar(grid: CellGrid, values: Field, far: Tensor, wall_sign: float) -> tuple[Tensor, Tensor]:
    """One ghost layer along and outwards: copied at the outlets, `wall_sign` times the cell's at the wall.

    Args:
        grid: cells.
        values: values of the cells.
        far: values of the far field, which broadcast to (B, I).
        wall_sign: -1 for values that vanish at the wall.
    """
    channel = values[:, None]
    far = far.expand(values.shape[:2])[:, None]
    outward = pad_outward(channel, grid.wall, values.new_tensor([wall_sign]), far)[:, 0]
    return pad_along(values, values[:, 0], values[:, -1]), outward


def face_viscosity(grid: CellGrid, stream: Stream, eddy: Field) -> tuple[Tensor, Tensor]:
    """Total viscosity times conductance at the faces along and outwards; no eddy viscosity at the wall."""
    along, outward = face_means(*pad_scalar(grid, eddy, eddy[..., -1], -1.0))
    viscosity = stream.viscosity[:, None, None]
    return (viscosity + along) * grid.along_conductance, (viscosity + outward) * grid.outward_conductance


def transport_weights(flux: Sides, diffusion: Sides) -> Sides:
    """Weights c of Σ c (neighbour - own): upwind convection of first order and diffusion, all c ≤ 0."""
    before, after, below, above = (
        through.clamp(max=0) - diffusive for through, diffusive in zip(flux, diffusion, strict=True)
    )
    return before, after, below, above


def transport(weights: Sides, around: Sides, values: Field) -> Field:
    """Net outflow Σ c (neighbour - own)."""
    first, *rest = (c * (other - values) for c, other in zip(weights, around, strict=True))
    return first + rest[0] + rest[1] + rest[2]


def flow_sides(
    jacobians: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Sides, Sides]:
    """Derivatives of the outflow of each cell, per face, with respect to the cell and to its neighbour."""
    (left_along, right_along), (left_outward, right_outward) = jacobians
    as_right, as_left = sides(right_along, right_outward), sides(left_along, left_outward)
    own = (as_right[0], as_left[1], as_right[2], as_left[3])
    other = (as_left[0], as_right[1], as_left[2], as_right[3])
    return own, other


def with_neighbours(values: Tensor) -> StencilBlocks:
    """Values (B, C, I, J) of each cell and its neighbours, for columns of a matrix; own values at borders."""
    below = torch.cat([values[..., :1].flip(-2), values[..., :-1]], dim=-1)
    above = torch.cat([values[..., 1:], values[..., -1:]], dim=-1)
    along = pad_along(values, values[..., 0, :], values[..., -1, :])
    return StencilBlocks(values, along[..., :-2, :], along[..., 2:, :], below, above)
