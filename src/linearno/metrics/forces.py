"""Forces of a flow on a wall, from fields at the nodes of a mesh of quadrilaterals in the plane.

Axes: N nodes, Q quadrilaterals, W edges of quadrilaterals on the wall, B samples.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

Nodes = Float[Tensor, "N 2"]


class Force(NamedTuple):
    """Force of a fluid on a body, divided by its density, per length of the span.

    Args:
        pressure: part of the pressure (B, 2), in m³/s² for SI units.
        friction: part of the wall shear stress (B, 2).
    """

    pressure: Float64[Tensor, "B 2"]
    friction: Float64[Tensor, "B 2"]

    @property
    def total(self) -> Float64[Tensor, "B 2"]:
        return self.pressure + self.friction


def wall_force(
    nodes: Nodes,
    quads: Int64[Tensor, "Q 4"],
    wall: Bool[Tensor, "N"],
    pressure: Float[Tensor, "N"],
    velocity: Nodes,
    *,
    viscosity: float,
    owner: Int64[Tensor, "Q"] | None = None,
    samples: int = 1,
) -> Force:
    """∮ (p n + 2 ν (S − tr(S)/3) m) dℓ over the wall, normals n into the body and m = −n; second order.

    S is the symmetric part of the velocity gradient. Its value at a node is the mean over the quadrilaterals
    around the node of the gradient of the bilinear interpolant there, as in VTK; on an edge both gradient and
    pressure are the means of its ends.

    Args:
        nodes: positions.
        quads: corners, in a row around each quadrilateral, clockwise or not; all that touch the wall.
        wall: mask of the nodes on the wall.
        pressure: pressure divided by density.
        velocity: zero on the wall.
        viscosity: kinematic viscosity ν.
        owner: sample of each quadrilateral; one sample by default.
        samples: B.
    """
    nodes, velocity, pressure = nodes.double(), velocity.double(), pressure.double()
    gradient = wall_gradient(nodes, quads, wall, velocity)
    start, stop, outward, index = wall_edges(nodes, quads, wall)
    owner = torch.zeros_like(quads[:, 0]) if owner is None else owner
    slope = (gradient[start] + gradient[stop]) / 2
    strain = (slope + slope.mT) / 2
    third = strain.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / 3
    shear = 2 * viscosity * ((strain * outward[:, None]).sum(dim=-1) - third[:, None] * outward)
    push = -(pressure[start] + pressure[stop])[:, None] / 2 * outward
    return Force(*(nodes.new_zeros(samples, 2).index_add(0, owner[index], part) for part in (push, shear)))


def wall_gradient(
    nodes: Nodes, quads: Int64[Tensor, "Q 4"], wall: Bool[Tensor, "N"], velocity: Nodes
) -> Float[Tensor, "N 2 2"]:
    """∂u_k/∂x_l at the nodes of the wall: mean over the quadrilaterals around each; zero at other nodes."""
    corner = quads.flatten()
    following, previous = quads.roll(-1, dims=1).flatten(), quads.roll(1, dims=1).flatten()
    chosen = wall[corner]
    corner, following, previous = corner[chosen], following[chosen], previous[chosen]
    (ax, ay), (bx, by) = ((nodes[end] - nodes[corner]).unbind(-1) for end in (following, previous))
    first, second = velocity[following] - velocity[corner], velocity[previous] - velocity[corner]
    area = ax * by - ay * bx
    inverse = torch.where(area == 0, 0, 1 / torch.where(area == 0, 1, area))[:, None]  # 0: no area to average
    along_x = (first * by[:, None] - second * ay[:, None]) * inverse
    along_y = (second * ax[:, None] - first * bx[:, None]) * inverse
    total = velocity.new_zeros(len(nodes), 2, 2)
    total = total.index_add(0, corner, torch.stack([along_x, along_y], dim=-1))
    count = torch.bincount(corner[area != 0], minlength=len(nodes)).clamp(min=1)
    return total / count[:, None, None]


def wall_edges(
    nodes: Nodes, quads: Int64[Tensor, "Q 4"], wall: Bool[Tensor, "N"]
) -> tuple[Int64[Tensor, "W"], Int64[Tensor, "W"], Float[Tensor, "W 2"], Int64[Tensor, "W"]]:
    """Edges of quadrilaterals on the wall: both ends, normals from the body times length, quadrilateral.

    The quadrilateral of an edge is to the left of the direction from its first to its second end.
    """
    corners = nodes[quads]
    diagonals = corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]
    counterclockwise = diagonals[0][:, 0] * diagonals[1][:, 1] > diagonals[0][:, 1] * diagonals[1][:, 0]
    quads = torch.where(counterclockwise[:, None], quads, quads.flip(1))
    following = quads.roll(-1, dims=1)
    index, side = (wall[quads] & wall[following]).nonzero(as_tuple=True)
    start, stop = quads[index, side], following[index, side]
    x, y = (nodes[stop] - nodes[start]).unbind(-1)
    return start, stop, torch.stack([-y, x], dim=-1), index


def lift_and_drag(
    force: Float[Tensor, "B 2"], speed: Float[Tensor, "B"], angle: Float[Tensor, "B"]
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Coefficients of lift and drag for a chord of 1: 2 F / U², across and along the stream.

    Args:
        force: force divided by density.
        speed: U of the stream.
        angle: angle of the stream to the x axis in radians.
    """
    x, y = (2 * force / speed[:, None] ** 2).unbind(-1)
    return y * angle.cos() - x * angle.sin(), x * angle.cos() + y * angle.sin()
