"""Finite-volume geometry of the cells of C-grids, with ghost cells and five-point stencils.

Cells on the first line touch the wall, or in the wake the cells on the other side. The borders at the first
and the last row are outlets; the last line borders on the far field.

Axes: B grids, I cells along (even), J cells outwards, C channels; channels come first: (B, C, I, J).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from linearno.solvers.euler import quad_areas
from linearno.solvers.linalg.c_grid_elimination import StencilBlocks

Sides = tuple[
    Tensor, Tensor, Tensor, Tensor
]  # of each cell: before, after, below, above; (B, ..., I, J) each


class CellGrid(NamedTuple):
    """Geometry of cells.

    Args:
        wake: cells along each side of the wake.
        wall: which cells of the first line touch the wall.
        along: area vectors (B, 2, I + 1, J) of the faces between neighbours along the grid.
        outward: area vectors (B, 2, I, J + 1) of the faces between neighbours outwards.
        along_conductance: squared area over the volume around each face; half a cell at outlets.
        outward_conductance: the same; whole cells at the wall, where ghost values are mirrored.
        volume: areas of the cells.
        centre: their centres.
        distance: distance of the centres to the wall.
        far: middles of the faces to the far field.
        outlets: middles of the faces at the first and the last row.
    """

    wake: int
    wall: Bool[Tensor, "I"]
    along: Float[Tensor, "B 2 I+1 J"]
    outward: Float[Tensor, "B 2 I J+1"]
    along_conductance: Float[Tensor, "B I+1 J"]
    outward_conductance: Float[Tensor, "B I J+1"]
    volume: Float[Tensor, "B I J"]
    centre: Float[Tensor, "B I J 2"]
    distance: Float[Tensor, "B I J"]
    far: Float[Tensor, "B I 2"]
    outlets: tuple[Float[Tensor, "B J 2"], Float[Tensor, "B J 2"]]

    def select(self, index: Int64[Tensor, "b"]) -> "CellGrid":
        """Grids at `index`."""
        first, last = self.outlets
        shared = ("wake", "wall", "outlets")
        chosen = {name: getattr(self, name)[index] for name in self._fields if name not in shared}
        return CellGrid(wake=self.wake, wall=self.wall, outlets=(first[index], last[index]), **chosen)


def build_cells(nodes: Float64[Tensor, "B _ _ 2"], wake: int) -> CellGrid:
    """Cells of grids whose J axis lies to the left of the I axis.

    Args:
        nodes: corners of the cells; both sides of the wake have equal points.
        wake: cells along each side of the wake.
    """
    dx, dy = nodes.diff(dim=2).unbind(-1)
    along = torch.stack([dy, -dx], dim=1)
    dx, dy = nodes.diff(dim=1).unbind(-1)
    outward = torch.stack([-dy, dx], dim=1)
    volume = -quad_areas(nodes)
    cells = torch.arange(volume.shape[1], device=nodes.device)
    wall = (cells >= wake) & (cells < len(cells) - wake)
    first = torch.where(wall, volume[..., 0], (volume[..., 0] + volume[..., 0].flip(1)) / 2)[..., None]
    rows, lines = (volume[:, 1:] + volume[:, :-1]) / 2, (volume[..., 1:] + volume[..., :-1]) / 2
    around_along = torch.cat([volume[:, :1] / 2, rows, volume[:, -1:] / 2], dim=1)
    around_outward = torch.cat([first, lines, volume[..., -1:] / 2], dim=2)
    centre = (nodes[:, 1:, 1:] + nodes[:, :-1, :-1] + nodes[:, :-1, 1:] + nodes[:, 1:, :-1]) / 4
    body = nodes[:, wake : nodes.shape[1] - wake, 0]
    return CellGrid(
        wake,
        wall,
        along,
        outward,
        (along**2).sum(dim=1) / around_along,
        (outward**2).sum(dim=1) / around_outward,
        volume,
        centre,
        torch.stack([_distance(*pair) for pair in zip(centre, body, strict=True)]),
        (nodes[:, 1:, -1] + nodes[:, :-1, -1]) / 2,
        ((nodes[:, 0, 1:] + nodes[:, 0, :-1]) / 2, (nodes[:, -1, 1:] + nodes[:, -1, :-1]) / 2),
    )


def _distance(points: Float64[Tensor, "I J 2"], line: Float64[Tensor, "n 2"]) -> Float64[Tensor, "I J"]:
    """Distance of points to the segments of a line."""
    start, edge = line[:-1], line.diff(dim=0)
    to_points = points[..., None, :] - start
    share = ((to_points * edge).sum(dim=-1) / (edge * edge).sum(dim=-1)).clamp(0, 1)
    return (to_points - share[..., None] * edge).norm(dim=-1).amin(dim=-1)


def sides(along: Tensor, outward: Tensor, *, oriented: bool = True) -> Sides:
    """Values at the four faces of each cell from values at all faces.

    Args:
        along: values (B, ..., I + 1, J) at faces between neighbours along the grid.
        outward: values (B, ..., I, J + 1) at the other faces.
        oriented: change signs where a face's area vector points into the cell.
    """
    sign = -1 if oriented else 1
    return sign * along[..., :-1, :], along[..., 1:, :], sign * outward[..., :-1], outward[..., 1:]


def pad_along(values: Tensor, first: Tensor, last: Tensor, layers: int = 1) -> Tensor:
    """Append ghost values (B, ..., J) beyond both outlets."""
    return torch.cat([*[first[..., None, :]] * layers, values, *[last[..., None, :]] * layers], dim=-2)


def pad_outward(
    values: Tensor, wall: Bool[Tensor, "I"], sign: Tensor, far: Tensor, layers: int = 1
) -> Tensor:
    """Append ghost values: mirrored at the wall, the other side of the wake, and the far field.

    Args:
        values: (B, C, I, J).
        wall: which cells touch the wall.
        sign: factors (C,) of the mirrored values.
        far: values (B, C, I) of the far field.
        layers: number of ghost layers.
    """
    first = values[..., :layers].flip(-1)
    ghost = torch.where(wall[:, None], first * sign[:, None, None], first.flip(-2))
    return torch.cat([ghost, values, *[far[..., None]] * layers], dim=-1)


def neighbours(padded_along: Tensor, padded_outward: Tensor) -> Sides:
    """Values of the four neighbours of each cell from values with one ghost layer."""
    return (
        padded_along[..., :-2, :],
        padded_along[..., 2:, :],
        padded_outward[..., :-2],
        padded_outward[..., 2:],
    )


def face_means(padded_along: Tensor, padded_outward: Tensor) -> tuple[Tensor, Tensor]:
    """Means of both cells at all faces from values with one ghost layer."""
    along = (padded_along[..., 1:, :] + padded_along[..., :-1, :]) / 2
    return along, (padded_outward[..., 1:] + padded_outward[..., :-1]) / 2


def assemble(
    wall: Bool[Tensor, "I"], own: Sides, neighbour: Sides, mirrored: Tensor, copied: Tensor
) -> StencilBlocks:
    """Blocks (B, m, m, I, J) of a matrix from derivatives of the fluxes through the faces of each cell.

    Ghost values are replaced by the cell's own: times `mirrored` at the wall, times `copied` at the outlets;
    those of the far field are constant.

    Args:
        wall: which cells touch the wall.
        own: derivatives with respect to the cell itself, per face.
        neighbour: derivatives with respect to the neighbour, per face.
        mirrored: factors (m,) of unknowns in ghost cells of the wall.
        copied: factors (m,) of unknowns in ghost cells of the outlets.
    """
    total = own[0] + own[1] + own[2] + own[3]
    before, after, below, above = (part.clone() for part in neighbour)
    total[..., 0, :] += before[..., 0, :] * copied[:, None]
    total[..., -1, :] += after[..., -1, :] * copied[:, None]
    total[..., 0] += below[..., 0] * mirrored[:, None] * wall
    before[..., 0, :], after[..., -1, :], above[..., -1] = 0, 0, 0
    below[..., 0] *= ~wall
    return StencilBlocks(total, before, after, below, above)
