"""Air flow around bodies in a closed channel, with the lattice Boltzmann method.

The body stands still in the middle of a channel with damped sides; air flows along z. A body that is
symmetric in x is solved in the half x > 0. Lengths are metres, velocities m/s, pressures Pa.

Axes: B bodies, N points.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from linearno.core.device import available_cores
from linearno.core.errors import SampleError, UserError
from linearno.solvers.lattice_boltzmann import Backend, LatticeFlow
from linearno.solvers.lattice_walls import Sides, Walls, solid_links, walls_from_distance
from linearno.solvers.surface_distance import ClosedSurface

CELLS_PER_BODY = 8  # smallest number of cells across a body
MAX_ASYMMETRY = 0.05  # of the width
CLEARANCE = 4  # cells between a body and the sides of its channel
SAMPLE_STEPS = 10  # steps between samples of the mean flow
PROBE_CELLS = 0.75  # distance at which surface pressure is read, along the normal
MIN_FLUID = 0.05  # smallest weight of fluid cells in an interpolation


@dataclass(frozen=True)
class Tunnel:
    """Channel, air and numerical settings. The defaults reproduce the surface pressure of ShapeNet-Car.

    Args:
        spacing: size of a cell.
        half_width: half of the width; the full width if `symmetric` is false is twice this.
        height: height of the channel.
        below: height of y = 0 above the lower side.
        upstream: distance of the inlet from z = 0.
        downstream: distance of the outlet from z = 0.
        symmetric: solve the half x > 0 only.
        speed: speed of the air.
        density: density of the air.
        viscosity: constant eddy viscosity, in m²/s.
        smagorinsky: Smagorinsky constant.
        slip: slip of the body's surface, 0 (none) to 1.
        seconds: simulated time; means are taken over its second half.
        lattice_speed: speed of the air in lattice units.
        sponge: length of the sponge before the outlet.
    """

    spacing: float = 0.0625
    half_width: float = 2.625
    height: float = 5.25
    below: float = 1.93
    upstream: float = 6.0
    downstream: float = 8.0
    symmetric: bool = True
    speed: float = 20.0
    density: float = 1.0
    viscosity: float = 0.02
    smagorinsky: float = 0.17
    slip: float = 0.1
    seconds: float = 1.5
    lattice_speed: float = 0.15
    sponge: float = 2.0

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Cells along x, y and z."""
        width = self.half_width * (1 if self.symmetric else 2)
        lengths = (width, self.height, self.upstream + self.downstream)
        x, y, z = (max(1, round(length / self.spacing)) for length in lengths)
        return x, y, z

    @property
    def origin(self) -> Float[ndarray, "3"]:
        """Lower corner of the channel."""
        return np.array([0 if self.symmetric else -self.half_width, -self.below, -self.upstream], float)

    @property
    def steps(self) -> int:
        """Time steps, a multiple of twice SAMPLE_STEPS."""
        step = self.spacing * self.lattice_speed / self.speed
        return 2 * SAMPLE_STEPS * max(1, ceil(self.seconds / step / (2 * SAMPLE_STEPS)))

    @property
    def sides(self) -> Sides:
        x = "mirror" if self.symmetric else "damped"
        return x, "damped", "damped", "damped", "inlet", "outlet"

    @property
    def pressure_scale(self) -> float:
        """Pressure in Pa of a density of 1 in lattice units."""
        return self.density * (self.speed / self.lattice_speed) ** 2 / 3

    @property
    def velocity_scale(self) -> float:
        return self.speed / self.lattice_speed

    def centres(self, axis: int) -> Float[ndarray, "n"]:
        """Coordinates of the cell centres along an axis, halo cells included."""
        return self.origin[axis] + self.spacing * (np.arange(-1, self.shape[axis] + 1) + 0.5)

    def require_fit(self, surface: ClosedSurface) -> None:
        """Raise if the body is larger than the channel, or the cells are too coarse for it."""
        lower, upper = surface.bounds
        origin, size = self.origin, self.spacing * np.array(self.shape)
        room = origin + CLEARANCE * self.spacing, origin + size - CLEARANCE * self.spacing
        if self.symmetric:
            if abs(lower[0] + upper[0]) > MAX_ASYMMETRY * (upper[0] - lower[0]):
                raise UserError(
                    f"{surface.name} extends from {lower[0]:.3g} to {upper[0]:.3g} m along x; half of the "
                    "channel needs a body that is symmetric in x: centre it, or solve the whole channel"
                )
            room[0][0] = -room[1][0]
        for axis in np.flatnonzero((lower < room[0]) | (upper > room[1]))[:1]:
            raise UserError(
                f"{surface.name} extends from {lower[axis]:.3g} to {upper[axis]:.3g} m along {'xyz'[axis]}, "
                f"and the channel has room from {room[0][axis]:.3g} to {room[1][axis]:.3g} m; "
                "make the body smaller or the channel larger"
            )
        thin = float((upper - lower).min())
        if thin < CELLS_PER_BODY * self.spacing:
            raise UserError(
                f"cells of {self.spacing:.3g} m are too coarse for {surface.name}, which is {thin:.3g} m "
                f"across; cells of {thin / CELLS_PER_BODY:.3g} m or smaller would do"
            )


class MeanFlow(NamedTuple):
    """Mean flow around bodies.

    Args:
        tunnel: channel and settings.
        fields: mean pressure and velocity (B, 4, X, Y, Z), in Pa and m/s.
        fluid: cells outside of the bodies (B, X, Y, Z).
        drag: force along z by exchange of momentum (B, K), in N, at K times of the run. It contains the
            friction of the coarse grid, which is too large.
    """

    tunnel: Tunnel
    fields: Float[Tensor, "B 4 X Y Z"]
    fluid: Tensor
    drag: Float[Tensor, "B K"]

    def at(self, body: int, points: Float[ndarray, "N 3"]) -> Float[Tensor, "N 4"]:
        """Trilinear interpolation between fluid cells; points without such cells get NaN."""
        tunnel, fields, fluid = self.tunnel, self.fields[body], self.fluid[body]
        place = points.copy()
        if tunnel.symmetric:
            place[:, 0] = np.abs(place[:, 0])
        cells = torch.from_numpy((place - tunnel.origin) / tunnel.spacing - 0.5).to(fields.device)
        base = cells.floor()
        share, base = (cells - base).to(fields), base.long()
        total, weights = fields.new_zeros(len(points), 4), fields.new_zeros(len(points))
        last = torch.tensor(fluid.shape, device=fields.device) - 1
        for corner in np.ndindex(2, 2, 2):
            step = torch.tensor(corner, device=fields.device)
            i, j, k = (base + step).clamp_min(0).minimum(last).T
            weight = torch.where(step.bool(), share, 1 - share).prod(dim=1) * fluid[i, j, k]
            total += weight[:, None] * fields[:, i, j, k].T
            weights += weight
        values = total / weights.clamp_min(1e-9)[:, None]
        values[weights < MIN_FLUID] = torch.nan
        if tunnel.symmetric:
            values[torch.from_numpy(points[:, 0] < 0).to(fields.device), 1] *= -1
        return values

    def surface_pressure(self, body: int, surface: ClosedSurface) -> Float[ndarray, "V"]:
        """Pressure at the vertices, read at 0.75 cells above them."""
        probes = surface.vertices + PROBE_CELLS * self.tunnel.spacing * surface.vertex_normals
        return _fill_unknown(self.at(body, probes)[:, :1].double().cpu().numpy(), surface.vertices)[:, 0]

    def velocity(self, body: int, points: Float[ndarray, "N 3"]) -> Float[ndarray, "N 3"]:
        """Velocity at points outside of the body."""
        return _fill_unknown(self.at(body, points)[:, 1:].double().cpu().numpy(), points)


def pressure_drag(surface: ClosedSurface, pressure: Float[ndarray, "V"]) -> float:
    """−∮ p n_z dA over the polygons, with the mean of the corners on each."""
    return -float((pressure[surface.polygons].mean(axis=1) * surface.area_vectors[:, 2]).sum())


def solve_wind_tunnel(
    surfaces: Sequence[ClosedSurface],
    tunnel: Tunnel | None = None,
    *,
    device: torch.device | str = "cpu",
    backend: Backend = "auto",
) -> MeanFlow:
    """Mean flow around several bodies, each alone in its channel.

    Args:
        surfaces: closed surfaces.
        tunnel: channel and settings.
        device: device of the solver.
        backend: kernels or plain PyTorch; see `LatticeFlow`.
    """
    tunnel = tunnel or Tunnel()
    for surface in surfaces:
        tunnel.require_fit(surface)
    with ThreadPoolExecutor(min(len(surfaces), available_cores())) as pool:
        walls = list(pool.map(partial(surface_walls, tunnel=tunnel), surfaces))
    lattice = LatticeFlow(
        tunnel.shape,
        tunnel.sides,
        walls=walls,
        viscosity=tunnel.viscosity * tunnel.lattice_speed / (tunnel.speed * tunnel.spacing),
        smagorinsky=tunnel.smagorinsky,
        speed=tunnel.lattice_speed,
        sponge=int(tunnel.sponge / tunnel.spacing),
        device=device,
        backend=backend,
    )
    mean, drag = _average(lattice, tunnel.steps)
    fluid = ~torch.from_numpy(np.stack([body.solid[1:-1, 1:-1, 1:-1] for body in walls])).to(mean.device)
    finite = (mean.isfinite() | ~fluid[:, None]).flatten(1).all(dim=1)
    for index in (~finite).nonzero()[:1, 0].tolist():
        raise SampleError(
            index, f"the flow around {surfaces[index].name} diverged; use smaller cells or a larger viscosity"
        )
    mean[:, 0] *= tunnel.pressure_scale
    mean[:, 1:] *= tunnel.velocity_scale
    force = tunnel.density * (tunnel.velocity_scale * tunnel.spacing) ** 2 * (1 + tunnel.symmetric)
    return MeanFlow(tunnel, mean, fluid, drag * force)


def _average(lattice: LatticeFlow, steps: int) -> tuple[Float[Tensor, "B 4 X Y Z"], Float[Tensor, "B K"]]:
    """Mean r, u, v, w over the second half of the run, and the force along z every SAMPLE_STEPS steps."""
    samples, drag = steps // SAMPLE_STEPS, []
    mean = torch.zeros_like(lattice.moments())
    for sample in range(samples):
        lattice.run(SAMPLE_STEPS)
        drag.append(lattice.forces()[:, 2])
        if sample >= samples // 2:
            mean += lattice.moments()
    return mean / (samples - samples // 2), torch.stack(drag, dim=1)


def surface_walls(surface: ClosedSurface, tunnel: Tunnel) -> Walls:
    """Walls of a body in the cells of a channel: exact distances in the cells next to its surface."""
    x, y, z = (tunnel.centres(axis) for axis in range(3))
    solid = surface.inside_columns(x, y, z)
    cell, _ = solid_links(solid)
    if not len(cell):
        raise UserError(f"{surface.name} contains no cell centre of the channel; use smaller cells")
    near = np.zeros(solid.shape, bool)
    near[tuple(cell.T)] = True
    near |= _grown(near) & solid
    chosen = np.argwhere(near)
    centres = np.stack([values[i] for values, i in zip((x, y, z), chosen.T, strict=True)], axis=-1)
    distance, normals = surface.distance(centres)
    signed = np.where(solid, -np.inf, np.inf)
    signed[near] = np.where(solid[near], -distance, distance)
    normal = np.zeros((*solid.shape, 3))
    normal[near] = normals
    return walls_from_distance(signed, normal, tunnel.slip)


def _grown(cells: ndarray) -> ndarray:
    """Cells within one cell, diagonals included."""
    grown = cells.copy()
    for axis in range(3):
        padded = np.pad(grown, [(1, 1) if k == axis else (0, 0) for k in range(3)])
        size = grown.shape[axis]
        grown = grown | padded.take(range(size), axis) | padded.take(range(2, size + 2), axis)
    return grown


def _fill_unknown(values: Float[ndarray, "N C"], points: Float[ndarray, "N 3"]) -> Float[ndarray, "N C"]:
    """Values with NaN replaced by those of the nearest point with values."""
    unknown = np.isnan(values).any(axis=1)
    if unknown.any() and not unknown.all():
        known = np.flatnonzero(~unknown)
        gaps = ((points[unknown][:, None] - points[known][None]) ** 2).sum(axis=-1)
        values[unknown] = values[known[gaps.argmin(axis=1)]]
    return values
