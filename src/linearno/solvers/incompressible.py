"""Finite volumes for incompressible viscous flow by artificial compressibility, in batches.

Channels of a flow are pressure over density, and velocity along x and y. Chord 1, free stream 1, viscosity
1/Re. The fluxes of a face with area vector S and θ = u·S are (θ, u θ + p S_x, v θ + p S_y).

Axes: B flows, I × J cells of a C-grid.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from linearno.solvers.c_grid_cells import CellGrid, pad_along, pad_outward

KAPPA = 1 / 3  # third-order upwind-biased interpolation on uniform grids
VORTEX = (0.25, 0.0)  # position of the vortex that represents the airfoil at the far field

Flow = Float[Tensor, "B 3 I J"]
Faces = Float[Tensor, "B 3 _ _"]
Jacobian = Float[Tensor, "B 3 3 _ _"]  # rows are equations, columns unknowns


class Stream(NamedTuple):
    """Free stream.

    Args:
        angle: angle of attack in radians.
        viscosity: 1/Re.
        lift: lift coefficient, for the circulation at the far field.
    """

    angle: Float[Tensor, "B"]
    viscosity: Float[Tensor, "B"]
    lift: Float[Tensor, "B"]

    def select(self, index: Int64[Tensor, "b"]) -> "Stream":
        """Streams at `index`."""
        return Stream(*(part[index] for part in self))


class PaddedFlow(NamedTuple):
    """Flow with two ghost layers along and outwards."""

    along: Float[Tensor, "B 3 I+4 J"]
    outward: Float[Tensor, "B 3 I J+4"]

    def velocity(self) -> tuple[Tensor, Tensor]:
        """Velocity with one ghost layer along and outwards."""
        return self.along[:, 1:, 1:-1], self.outward[:, 1:, :, 1:-1]


def far_field(stream: Stream, points: Float[Tensor, "B n 2"]) -> Float[Tensor, "B 3 n"]:
    """Free stream with the vortex of the lift."""
    x, y = points[..., 0] - VORTEX[0], points[..., 1] - VORTEX[1]
    swirl = stream.lift[:, None] / (4 * math.pi) / (x * x + y * y)
    u, v = stream.angle.cos()[:, None] + swirl * y, stream.angle.sin()[:, None] - swirl * x
    return torch.stack([(1 - u * u - v * v) / 2, u, v], dim=1)


def pad_flow(grid: CellGrid, stream: Stream, flow: Flow) -> PaddedFlow:
    """Append ghost cells: (p, -u, -v) at the wall, pressure of the far field at the outlets."""
    first, last = (
        torch.cat([far_field(stream, points)[:, :1], flow[:, 1:, at]], dim=1)
        for at, points in zip((0, -1), grid.outlets, strict=True)
    )
    far = far_field(stream, grid.far)
    sign = flow.new_tensor([1.0, -1.0, -1.0])
    return PaddedFlow(
        pad_along(flow, first, last, layers=2), pad_outward(flow, grid.wall, sign, far, layers=2)
    )


def flow_residual(grid: CellGrid, flow: Flow, padded: PaddedFlow, viscosity: tuple[Tensor, Tensor]) -> Flow:
    """Net outflow of mass and momentum from each cell.

    Roe's flux between states interpolated along grid lines, without limiter, second order; viscous stresses
    from differences across the faces (thin layers in both directions).

    Args:
        grid: cells.
        flow: state.
        padded: the state with ghost cells.
        viscosity: total viscosity times conductance at the faces along and outwards.
    """
    along = roe(*_face_states(padded.along, 2), grid.along)
    outward = roe(*_face_states(padded.outward, 3), grid.outward)
    outward = torch.cat([_wall_flux(grid, flow, outward[..., :1]), outward[..., 1:]], dim=3)
    u_along, u_outward = padded.velocity()
    along[:, 1:] -= viscosity[0][:, None] * u_along.diff(dim=2)
    outward[:, 1:] -= viscosity[1][:, None] * u_outward.diff(dim=3)
    return along.diff(dim=2) + outward.diff(dim=3)


def _wall_flux(grid: CellGrid, flow: Flow, other: Faces) -> Faces:
    """Pressure of the first cell on the wall, `other` across the wake."""
    pressure = flow[:, :1, :, :1]
    on_wall = torch.cat([torch.zeros_like(pressure), pressure * grid.outward[..., :1]], dim=1)
    return torch.where(grid.wall[:, None], on_wall, other)


def _face_states(padded: Tensor, axis: int) -> tuple[Faces, Faces]:
    """States on both sides of all faces along an axis from states with two ghost layers."""
    faces = padded.shape[axis] - 3
    first, left, right, last = (padded.narrow(axis, start, faces) for start in range(4))
    far, near = (1 - KAPPA) / 4, (1 + KAPPA) / 4
    step = near * (right - left)
    return left + far * (left - first) + step, right - far * (last - right) - step


def roe(left: Faces, right: Faces, area: Float[Tensor, "B 2 _ _"]) -> Faces:
    """Roe's flux through faces: mean flux minus half of |A| (right - left)."""
    frame = _frame(left, right, area)
    jump = _to_frame(frame, *(right - left).unbind(1))
    upwind = _from_frame(frame, *_absolute(frame, *jump))
    flux = _flux(frame, left) + _flux(frame, right) - torch.stack(upwind, dim=1)
    return flux * (frame.size / 2)[:, None]


def roe_jacobians(left: Faces, right: Faces, area: Float[Tensor, "B 2 _ _"]) -> tuple[Jacobian, Jacobian]:
    """Derivatives of the flux with respect to both states, |A| taken as constant."""
    frame = _frame(left, right, area)
    one, zero = torch.ones_like(frame.size), torch.zeros_like(frame.size)
    columns = []
    for unit in ((one, zero, zero), (zero, one, zero), (zero, zero, one)):
        column = _from_frame(frame, *_absolute(frame, *_to_frame(frame, *unit)))
        columns.append(torch.stack(column, dim=1))
    upwind, half = torch.stack(columns, dim=2), (frame.size / 2)[:, None, None]
    return half * (_flux_jacobian(frame, left) + upwind), half * (_flux_jacobian(frame, right) - upwind)


class _Frame(NamedTuple):
    """Area and unit normal of faces, mean velocity along the normal and the tangent, and speed of sound."""

    size: Tensor
    x: Tensor
    y: Tensor
    normal: Tensor
    tangential: Tensor
    sound: Tensor


def _frame(left: Faces, right: Faces, area: Tensor) -> _Frame:
    size = area.norm(dim=1)
    x, y = (area / size[:, None]).unbind(1)
    _, u, v = ((left + right) / 2).unbind(1)
    normal, tangential = u * x + v * y, v * x - u * y
    return _Frame(size, x, y, normal, tangential, torch.sqrt(normal * normal + 1))


def _to_frame(frame: _Frame, p: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return p, u * frame.x + v * frame.y, v * frame.x - u * frame.y


def _from_frame(frame: _Frame, p: Tensor, n: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return p, n * frame.x - t * frame.y, n * frame.y + t * frame.x


def _absolute(frame: _Frame, p: Tensor, n: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|A| times a jump of pressure, normal and tangential velocity."""
    u, c = frame.normal, frame.sound
    fast, slow, still = u + c, u - c, u.abs()
    up, down = (p + fast * n) / (2 * c), -(p + slow * n) / (2 * c)
    carried = frame.tangential / c * ((fast - still) * up - (-slow - still) * down)
    return (p + u * n) / c, (u * p + (1 + 2 * u * u) * n) / c, still * t + carried


def _flux(frame: _Frame, state: Faces) -> Faces:
    p, u, v = state.unbind(1)
    through = u * frame.x + v * frame.y
    return torch.stack([through, u * through + p * frame.x, v * through + p * frame.y], dim=1)


def _flux_jacobian(frame: _Frame, state: Faces) -> Jacobian:
    _, u, v = state.unbind(1)
    x, y = frame.x, frame.y
    through = u * x + v * y
    rows = [
        [torch.zeros_like(u), x, y],
        [x, through + u * x, u * y],
        [y, v * x, through + v * y],
    ]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def flow_jacobians(
    grid: CellGrid, padded: PaddedFlow, viscosity: tuple[Tensor, Tensor]
) -> tuple[tuple[Jacobian, Jacobian], tuple[Jacobian, Jacobian]]:
    """Derivatives of the first-order scheme's fluxes with respect to the cells on both sides of each face.

    Returns:
        Pairs (left, right) for the faces along and outwards.
    """
    along = roe_jacobians(padded.along[:, :, 1:-2], padded.along[:, :, 2:-1], grid.along)
    outward = roe_jacobians(padded.outward[..., 1:-2], padded.outward[..., 2:-1], grid.outward)
    left, right = (part[..., 0] for part in outward)
    left.mul_(~grid.wall)
    right.mul_(~grid.wall)
    right[:, 1:, 0] += grid.wall * grid.outward[..., 0]
    for pair, value in ((along, viscosity[0]), (outward, viscosity[1])):
        for channel in (1, 2):
            pair[0][:, channel, channel] += value
            pair[1][:, channel, channel] -= value
    return along, outward


def wave_speeds(along: Tensor, outward: Tensor, grid: CellGrid) -> tuple[Tensor, Tensor]:
    """Largest wave speed times area in each cell, mean of both faces, along and outwards.

    Args:
        along: θ at the faces along the grid.
        outward: θ at the other faces.
        grid: cells.
    """
    along = along.abs() + torch.sqrt(along**2 + (grid.along**2).sum(dim=1))
    outward = outward.abs() + torch.sqrt(outward**2 + (grid.outward**2).sum(dim=1))
    return (along[:, 1:] + along[:, :-1]) / 2, (outward[..., 1:] + outward[..., :-1]) / 2


class Forces(NamedTuple):
    """Force coefficients, for chord 1 and speed 1.

    Args:
        lift: lift coefficient.
        drag: drag coefficient.
        pressure_drag: its part due to pressure.
        friction: wall shear stress on each wall face over half the squared speed, positive towards the upper
            trailing edge.
    """

    lift: Float[Tensor, "B"]
    drag: Float[Tensor, "B"]
    pressure_drag: Float[Tensor, "B"]
    friction: Float[Tensor, "B W"]


def forces(grid: CellGrid, stream: Stream, flow: Flow) -> Forces:
    """Forces on the airfoil from the pressure and the velocity of the cells on the wall."""
    wall = grid.wall
    area, first = grid.outward[..., 0][..., wall], flow[..., 0][..., wall]
    pressure = -(first[:, :1] * area).sum(dim=-1)
    conductance = 2 * stream.viscosity[:, None] * grid.outward_conductance[..., 0][:, wall]
    shear = conductance[:, None] * first[:, 1:]
    size = area.norm(dim=1)
    tangent = torch.stack([area[:, 1], -area[:, 0]], dim=1) / size[:, None]
    total = pressure + shear.sum(dim=-1)
    cosine, sine = stream.angle.cos(), stream.angle.sin()
    return Forces(
        2 * (total[:, 1] * cosine - total[:, 0] * sine),
        2 * (total[:, 0] * cosine + total[:, 1] * sine),
        2 * (pressure[:, 0] * cosine + pressure[:, 1] * sine),
        2 * (shear * tangent).sum(dim=1) / size,
    )
