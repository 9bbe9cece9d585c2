"""A regular latent grid on the box of a mesh, its neighbours among the points, and Fourier blocks on it.

Axes: B samples, S geometries, N points, G points of the grid, X coordinates, K neighbours, C channels.
"""

from collections.abc import Sequence
from itertools import product
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from linearno.nn.config import NeighbourGraph
from linearno.nn.embeddings import unit_grid
from linearno.nn.graph import Graph, nearest_graph
from linearno.nn.spectral import CONVOLUTIONS, FourierLayer
from linearno.ops.neighbours import is_shared

Positions = Float[Tensor, "S N X"]
Box = tuple[tuple[float, float], ...]
DEFAULT_RADIUS = 1.5  # grid steps
CENTRES = 9  # along each half axis of a cell, in `most_in_ball`


class BoundingBox(NamedTuple):
    """The box that is mapped to the unit cube.

    Args:
        low: its lowest corner.
        extent: its lengths; 1 where the box is flat.
    """

    low: Float[Tensor, "S 1 X"]
    extent: Float[Tensor, "S 1 X"]

    def to_unit(self, positions: Positions) -> Positions:
        return (positions - self.low) / self.extent


class LatentCube(nn.Module):
    """A regular grid on the unit cube, both ends included, and the points of meshes around its points.

    Lengths are those of the unit cube, to which the box of a mesh is mapped axis by axis.

    Args:
        shape: points along each axis, 2 or more.
        box: bounds of the box, one pair for each axis; None: the bounding box of each mesh.
        radius_in: distance from a grid point within which it sees points of the mesh; None: 1.5 grid steps.
        radius_out: distance from a point of the mesh within which it sees grid points; None: 1.5 grid steps.
        neighbours: most points of the mesh that a grid point sees, the nearest.
    """

    points: Tensor
    bounds: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        box: Box | None,
        radius_in: float | None,
        radius_out: float | None,
        neighbours: int,
    ):
        if min(shape) < 2:
            raise ValueError(f"latent={shape}: a latent grid needs 2 points or more along each axis")
        if box is not None and len(box) != len(shape):
            raise ValueError(f"box={box}: expected one pair of bounds for each of {len(shape)} coordinates")
        if box is not None and not all(low < high for low, high in box):
            raise ValueError(f"box={box}: expected pairs of bounds, low < high")
        super().__init__()
        self.shape = shape
        steps = [1 / (side - 1) for side in shape]
        radius_in, radius_out = (r or DEFAULT_RADIUS * max(steps) for r in (radius_in, radius_out))
        self.incoming = NeighbourGraph(radius=radius_in, neighbours=neighbours)
        self.outgoing = NeighbourGraph(radius=radius_out, neighbours=most_in_ball(radius_out, shape))
        self.register_buffer("points", unit_grid(shape), persistent=False)
        self.register_buffer("bounds", None if box is None else torch.tensor(box), persistent=False)

    def box_of(self, positions: Positions) -> BoundingBox:
        """The box of each mesh; padded entries repeat points, and do not change it."""
        if self.bounds is None:
            low, high = positions.amin(dim=1, keepdim=True), positions.amax(dim=1, keepdim=True)
        else:
            low, high = self.bounds.to(positions).T[:, None, None]
        extent = high - low
        return BoundingBox(low, torch.where(extent > 0, extent, 1))

    def points_of(self, unit: Positions) -> Float[Tensor, "S G X"]:
        """The points of the grid, for each geometry."""
        return self.points.to(unit).expand(unit.shape[0], -1, -1)

    def graph_in(self, unit: Positions, mask: Bool[Tensor, "S N"] | None) -> Graph:
        """Edges from points of the mesh to points of the grid."""
        return nearest_graph(unit, self.points_of(unit), self.incoming, mask)

    def graph_out(self, unit: Positions) -> Graph:
        """Edges from points of the grid to points of the mesh."""
        return nearest_graph(self.points_of(unit), unit, self.outgoing)


def grid_shape(latent: int | tuple[int, ...] | None, coords: int) -> tuple[int, ...]:
    """Points along each axis of the latent grid."""
    if coords not in (1, 2, 3):
        raise ValueError(f"a latent grid has 1, 2 or 3 axes, got {coords} coordinates; choose another model")
    if latent is None:
        latent = 32 if coords == 3 else 64
    shape = (latent,) * coords if isinstance(latent, int) else tuple(latent)
    if len(shape) != coords:
        raise ValueError(f"latent={shape}: expected one number, or one for each of {coords} coordinates")
    return shape


def one_if_shared(positions: Float[Tensor, "B N X"]) -> Positions:
    """The first sample, if all are the same memory: neighbours and kernels are then computed once."""
    return positions[:1] if positions.shape[0] > 1 and is_shared(positions) else positions


def most_in_ball(radius: float, shape: Sequence[int]) -> int:
    """A bound of the number of grid points within `radius` of any point.

    It counts around the points of a fine grid in one corner of a cell (the others are mirror images), in
    balls that are larger by the distance from any point to the fine grid.
    """
    steps = np.array([1 / (side - 1) for side in shape])
    reach = [min(ceil(radius * (side - 1)) + 1, side - 1) for side in shape]
    offsets = np.array([*product(*(range(-r, r + 1) for r in reach))]) * steps
    fine = steps / (2 * (CENTRES - 1))
    centres = np.array([*product(range(CENTRES), repeat=len(shape))]) * fine
    limit = radius + np.linalg.norm(fine) / 2
    return max(int((np.linalg.norm(offsets - centre, axis=1) <= limit).sum()) for centre in centres)


class FourierBlock(nn.Module):
    """A Fourier layer, and a network of each grid point with a gated skip connection.

        z = σ(F⁻¹(R · F h) + W h + b),   h ← σ(mlp(z) + g ⊙ h)

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
        hidden: channels of the hidden layer of the network.
        activate: whether to apply σ, a GELU; not in a last block.
    """

    def __init__(self, width: int, modes: tuple[int, ...], hidden: int, *, activate: bool = True):
        super().__init__()
        conv = CONVOLUTIONS[len(modes)]
        self.fourier = FourierLayer(width, modes)
        self.mlp = nn.Sequential(conv(width, hidden, 1), nn.GELU(), conv(hidden, width, 1))
        self.gate = nn.Parameter(torch.ones(width, *[1] * len(modes)))
        self.activate = activate

    def forward(self, h: Float[Tensor, "B C *G"]) -> Float[Tensor, "B C *G"]:
        z = self.fourier(h)
        out = self.mlp(gelu(z) if self.activate else z) + self.gate * h
        return gelu(out) if self.activate else out
