"""C-grids around airfoils in sheared parabolic coordinates, in batches.

With z₀ a little behind the leading edge, w = X + iY = √(z - z₀) unfolds the airfoil and its wake into one
curve Y = S(X). Grid lines are X = constant and Y = S(X) + η, with η > 0 outwards, so that a grid
cannot fold where S is a function of X. All lengths are in chords.

Axes: B airfoils, I cells from the lower outlet around the leading edge to the upper outlet, J cells outwards.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float64
from torch import Tensor

from linearno.core.errors import SampleError, UserError
from linearno.solvers.naca import Sections, contour
from linearno.solvers.stretching import geometric_positions, two_sided_positions

FAR_FIELD = 100.0  # distance of the borders
CHECKED_POINTS = 801  # of a contour
ORIGIN_SHARE = 0.5  # z₀ lies this share of the radius of the leading edge behind it,
MAX_ORIGIN_RADIUS = 0.04  # or of this radius
NOSE_PARAMETER = 0.05  # points of the contour that determine this radius
WAKE_BLEND = 0.15  # length over which the wake turns from the trailing edge into the stream
CIRCULATION_SHARE = 0.9  # of thin airfoil theory, in the course of the wake
NOSE_SPACING = 0.32  # at the leading edge in the plane of w, over the number of cells of a side
EDGE_SPACING = 0.19  # at the trailing edge in chords, over the number of cells of a side
WAKE_SPACING = (
    0.12,
    6.0,
)  # at the outlet: at most this share of the far field, and this multiple of the mean
FIRST_CELL = 15.0  # height of the cells on the wall in viscous lengths ν/U
WAKE_GROWTH = 60.0  # relative growth of this height per chord behind the trailing edge
BISECTIONS = 60

Curve = Float64[Tensor, "B N"]


class GridCells(NamedTuple):
    """Size of a C-grid of 2 (wake + side) × outward cells.

    Args:
        wake: cells along the wake.
        side: cells along each side of the airfoil.
        outward: cells away from it.
    """

    wake: int
    side: int
    outward: int


def airfoil_grid(
    sections: Sections,
    angle: Float64[Tensor, "B"],
    reynolds: Float64[Tensor, "B"],
    cells: GridCells,
    *,
    refinement: int = 1,
) -> Float64[Tensor, "B _ _ 2"]:
    """Nodes of the C-grids, r I + 1 along and r J + 1 outwards for a refinement r.

    A refined grid is the same map at r times as many positions: every r-th node is one of the grid itself.

    Args:
        sections: shapes.
        angle: angles of attack in radians, which direct the wake.
        reynolds: Reynolds numbers, which give the height of the first cells.
        cells: size of the grid; at least (2, 4, 4).
        refinement: r.
    """
    if min(cells.wake - 2, cells.side - 4, cells.outward - 4) < 0 or refinement < 1:
        raise UserError(f"expected a grid of at least (2, 4, 4) cells and a refinement from 1, got {cells}")
    origin = _origin(sections)
    _require_unfolded(sections, origin)
    edge = _edge_point(sections, origin)
    positions = _positions_along(edge, cells, refinement)
    on_body = positions[:, cells.wake * refinement : -cells.wake * refinement or None]
    body = _body(sections, origin, on_body)
    wake = _wake(sections, origin, angle, positions[:, -cells.wake * refinement :])
    line = torch.cat([-wake.flip(1), body, wake], dim=1)  # -w is the same point from the other side
    x = (line * line + origin[:, None]).real
    height = FIRST_CELL / reynolds[:, None] * (1 + WAKE_GROWTH * (x - 1).clamp(min=0))
    total = math.sqrt(FAR_FIELD) - line.imag
    outwards = geometric_positions(height / (2 * line.abs()), total, cells.outward, refinement)
    w = torch.complex(line.real[..., None].expand_as(outwards), line.imag[..., None] + outwards)
    z = w * w + origin[:, None, None]
    nodes = torch.stack([z.real, z.imag], dim=-1)
    return _close(nodes, cells.wake * refinement)


def _close(nodes: Float64[Tensor, "B _ _ 2"], wake: int) -> Float64[Tensor, "B _ _ 2"]:
    """Make both sides of the wake equal to the bit, and place the trailing edge at (1, 0)."""
    upper = nodes[:, -wake:, 0]
    nodes[:, :wake, 0] = upper.flip(1)
    for at in (wake, -1 - wake):
        nodes[:, at, 0] = nodes.new_tensor([1.0, 0.0])
    return nodes


def _origin(sections: Sections) -> Complex[Tensor, "B"]:
    """Branch point z₀: inside the leading edge, on the axis of the circle through three of its points."""
    parameter = sections.thickness.new_tensor([-1.0, 0.0, 1.0]) * NOSE_PARAMETER
    lower, nose, upper = contour(sections, parameter.expand(len(sections.thickness), -1)).unbind(1)
    first, second, across = nose - lower, upper - nose, upper - lower
    cross = first[:, 0] * across[:, 1] - first[:, 1] * across[:, 0]
    radius = first.norm(dim=1) * second.norm(dim=1) * across.norm(dim=1) / (2 * cross.abs())
    inward = (lower + upper) / 2 - nose
    shift = ORIGIN_SHARE * radius.clamp(max=MAX_ORIGIN_RADIUS) / inward.norm(dim=1)
    point = nose + shift[:, None] * inward
    return torch.complex(point[:, 0], point[:, 1])


def _unfold(z: Complex[Tensor, "B N"], upper: Tensor) -> Complex[Tensor, "B N"]:
    """√z with arguments of z between -π/2 and 3π/2 on the upper side, π/2 and 5π/2 on the lower."""
    turned = torch.sqrt(torch.where(upper, -1j * z, 1j * z))
    turn = math.sqrt(0.5) * (1 + 1j)
    return torch.where(upper, turned * turn, turned * (1j * turn))  # scalars would be rounded to complex64


def _body_points(
    sections: Sections, origin: Complex[Tensor, "B"], parameter: Curve
) -> Complex[Tensor, "B N"]:
    x, y = contour(sections, parameter).unbind(-1)
    return _unfold(torch.complex(x, y) - origin[:, None], parameter >= 0)


def _require_unfolded(sections: Sections, origin: Complex[Tensor, "B"]) -> None:
    parameter = torch.linspace(-math.pi, math.pi, CHECKED_POINTS, dtype=torch.float64, device=origin.device)
    along = _body_points(sections, origin, parameter.expand(len(origin), -1)).real
    folded = ~(along.diff(dim=1) > 0).all(dim=1)
    if folded.any():
        raise SampleError(
            int(folded.nonzero()[0]), "the grid around this airfoil folds; expected less camber or thickness"
        )


def _edge_point(sections: Sections, origin: Complex[Tensor, "B"]) -> Float64[Tensor, "B"]:
    """X of the trailing edge on the upper side; on the lower side it is -X."""
    parameter = torch.full_like(sections.thickness, math.pi)[:, None]
    return _body_points(sections, origin, parameter).real[:, 0]


def _positions_along(edge: Float64[Tensor, "B"], cells: GridCells, refinement: int) -> Curve:
    """X of the grid lines: from the leading edge along a side and the wake, mirrored."""
    size, limit = 2 * edge, math.sqrt(FAR_FIELD)  # |dz/dw| at the trailing edge, nearly
    at_edge = EDGE_SPACING / cells.side / size
    at_nose = torch.full_like(edge, NOSE_SPACING / cells.side)
    at_end = (WAKE_SPACING[1] * (limit - edge) / cells.wake).clamp(max=WAKE_SPACING[0] * limit)
    side = two_sided_positions(at_nose, at_edge, edge, cells.side, refinement)
    wake = edge[:, None] + two_sided_positions(at_edge, at_end, limit - edge, cells.wake, refinement)
    half = torch.cat([side, wake[:, 1:]], dim=1)
    return torch.cat([-half[:, 1:].flip(1), half], dim=1)


def _body(sections: Sections, origin: Complex[Tensor, "B"], positions: Curve) -> Complex[Tensor, "B N"]:
    """Points of the airfoil at these X, by bisection of its parameter."""
    low, high = torch.full_like(positions, -math.pi), torch.full_like(positions, math.pi)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = _body_points(sections, origin, middle).real > positions
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    height = _body_points(sections, origin, (low + high) / 2).imag
    return torch.complex(positions, height)


def _wake(
    sections: Sections, origin: Complex[Tensor, "B"], angle: Float64[Tensor, "B"], positions: Curve
) -> Complex[Tensor, "B N"]:
    """Points of the wake at these X > 0, by bisection of x."""
    low, high = torch.ones_like(positions), torch.full_like(positions, 4 * FAR_FIELD)
    upper = torch.ones_like(positions, dtype=torch.bool)

    def points(x: Curve) -> Complex[Tensor, "B N"]:
        return _unfold(torch.complex(x, _wake_height(sections, angle, x)) - origin[:, None], upper)

    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = points(middle).real > positions
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return torch.complex(positions, points((low + high) / 2).imag)


def _wake_height(sections: Sections, angle: Float64[Tensor, "B"], x: Curve) -> Curve:
    """y of the wake: along the camber line at the trailing edge, then along a stream with circulation."""
    slope = sections.slope[:, 1].sum(dim=1)[:, None]
    tangent = angle.tan()[:, None]
    lift = 2 * math.pi * CIRCULATION_SHARE * angle[:, None]
    deflection = (1 + tangent**2) * lift / (4 * math.pi)
    start = tangent - deflection / 0.75
    turn = WAKE_BLEND * (1 - torch.exp(-(x - 1) / WAKE_BLEND)) * (slope - start)
    return turn + tangent * (x - 1) - deflection * torch.log((x - 0.25) / 0.75)
