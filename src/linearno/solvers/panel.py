"""Potential flow around airfoils by the panel method of Hess and Smith, in batches.

Each panel has a constant source; all panels have the same vortex strength. Speeds are relative to the free
stream, lengths to the chord.

Axes: B airfoils, N panels, M points.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

MAX_PAIRS = 2**23  # pairs of panels and points that are evaluated at once
OUTSIDE = 1e-9  # distance of the control points from the panels
TINY = 1e-18

Points = Float64[Tensor, "B M 2"]


class PanelFlow(NamedTuple):
    """Potential flow.

    Args:
        wall: ends of the panels, clockwise from the trailing edge.
        angle: angles of attack in radians.
        source: strengths of the sources.
        vortex: strength of the vortices.
        lift: lift coefficient with the circulation of Kutta's condition.
    """

    wall: Float64[Tensor, "B N+1 2"]
    angle: Float64[Tensor, "B"]
    source: Float64[Tensor, "B N"]
    vortex: Float64[Tensor, "B"]
    lift: Float64[Tensor, "B"]


def panel_flow(
    wall: Float64[Tensor, "B _ 2"],
    angle: Float64[Tensor, "B"],
    *,
    share: float = 1.0,
    max_lift: float = math.inf,
) -> PanelFlow:
    """Solve for the strengths. First order in the size of the panels.

    Args:
        wall: ends of the panels from the trailing edge along the lower and back along the upper side.
        angle: angles of attack in radians.
        share: circulation relative to that of Kutta's condition,
        max_lift: reduced further where the lift coefficient would be larger.
    """
    edges = wall.diff(dim=1)
    length = edges.norm(dim=-1)
    tangent = edges / length[..., None]
    normal = torch.stack([-tangent[..., 1], tangent[..., 0]], dim=-1)
    centres = (wall[:, 1:] + wall[:, :-1]) / 2
    sources = _influence(wall, centres + OUTSIDE * normal)
    vortices = _turn(sources).sum(dim=2)
    stream = torch.stack([angle.cos(), angle.sin()], dim=-1)[:, None]
    through = (sources * normal[:, :, None]).sum(dim=-1)
    through_vortices = (vortices * normal).sum(dim=-1)
    right = -(normal * stream).sum(dim=-1)
    ends = [0, -1]  # Kutta: opposite tangential velocities on both sides of the trailing edge
    edge_row = (sources[:, ends] * tangent[:, ends, None]).sum(dim=(1, 3))
    edge_vortices = (vortices[:, ends] * tangent[:, ends]).sum(dim=(1, 2))
    edge_right = -(tangent[:, ends] * stream).sum(dim=(1, 2))
    row = torch.cat([edge_row, edge_vortices[:, None]], dim=1)[:, None]
    matrix = torch.cat([torch.cat([through, through_vortices[..., None]], dim=2), row], dim=1)
    vortex = torch.linalg.solve(matrix, torch.cat([right, edge_right[:, None]], dim=1))[:, -1]
    lift = 2 * vortex * length.sum(dim=1)
    vortex = vortex * (max_lift / lift.abs().clamp(min=TINY)).clamp(max=share)
    source = torch.linalg.solve(through, right - through_vortices * vortex[:, None])
    return PanelFlow(wall, angle, source, vortex, lift)


def panel_velocity(flow: PanelFlow, points: Points) -> Points:
    """Velocity at points outside of the airfoils."""
    batch, panels = flow.source.shape
    stream = torch.stack([flow.angle.cos(), flow.angle.sin()], dim=-1)[:, None]
    parts = []
    for part in points.split(max(1, MAX_PAIRS // (batch * panels)), dim=1):
        influence = _influence(flow.wall, part)
        sources = (influence * flow.source[:, None, :, None]).sum(dim=2)
        vortices = _turn(influence.sum(dim=2)) * flow.vortex[:, None, None]
        parts.append(stream + sources + vortices)
    return torch.cat(parts, dim=1)


def _influence(wall: Float64[Tensor, "B _ 2"], points: Points) -> Float64[Tensor, "B M N 2"]:
    """Velocity at each point due to a unit source on each panel."""
    edges = wall.diff(dim=1)
    length = edges.norm(dim=-1)
    tangent = edges / length[..., None]
    normal = torch.stack([-tangent[..., 1], tangent[..., 0]], dim=-1)
    to_points = points[:, :, None] - wall[:, None, :-1]
    along, above = (to_points * tangent[:, None]).sum(dim=-1), (to_points * normal[:, None]).sum(dim=-1)
    from_start, from_end = along**2 + above**2, (along - length[:, None]) ** 2 + above**2
    tangential = torch.log((from_start / from_end.clamp(min=TINY)).clamp(min=TINY)) / 2
    viewing_angle = torch.atan2(above * length[:, None], from_start - along * length[:, None])
    velocity = tangential[..., None] * tangent[:, None] + viewing_angle[..., None] * normal[:, None]
    return velocity / (2 * math.pi)


def _turn(sources: Tensor) -> Tensor:
    """Velocity of clockwise vortices from that of sources: turned by -90 degrees."""
    return torch.stack([sources[..., 1], -sources[..., 0]], dim=-1)
