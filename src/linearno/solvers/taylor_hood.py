"""Taylor–Hood elements on a structured grid: steady Navier–Stokes, linearised, many grids at once.

Axes: B samples, P × Q elements along and across, n × m nodes (2P + 1, 2Q + 1), k × l corners (P + 1, Q + 1),
q points of quadrature in an element.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from linearno.core.errors import SampleError
from linearno.solvers.nested_dissection import CORNERS, ELEMENT, NODES, is_fixed, solve_by_dissection

Nodes = Float64[Tensor, "B n m 2"]  # vectors at the nodes: places, velocities, forces
Corners = Float64[Tensor, "B k l"]  # pressures
PerElement = Float64[Tensor, "B P Q ..."]


class Flow(NamedTuple):
    velocity: Nodes
    pressure: Corners


class Shapes(NamedTuple):
    """The functions of an element at its points of quadrature: quadratic φ, their slopes, and bilinear ψ."""

    phi: Float64[Tensor, "q 9"]
    slope: Float64[Tensor, "q 9 2"]
    psi: Float64[Tensor, "q 4"]
    weight: Float64[Tensor, "q"]


class Mesh(NamedTuple):
    """What an equation needs to know of a grid: ∇φ and the area around each point of quadrature."""

    gradient: Float64[Tensor, "B P Q q 9 2"]
    area: Float64[Tensor, "B P Q q"]


def newton_step(mesh: Mesh, flow: Flow, *, viscosity: float, force: Nodes) -> Flow:
    """The flow that solves the equations linearised about `flow`."""
    change = solve_by_dissection(element_systems(mesh, flow, viscosity, force))
    velocity, pressure = change[..., :18].unflatten(-1, (9, 2)), change[..., 18:, None]
    return Flow(
        flow.velocity - _joined(velocity, NODES, 2), flow.pressure - _joined(pressure, CORNERS, 1)[..., 0]
    )


def element_systems(mesh: Mesh, flow: Flow, viscosity: float, force: Nodes) -> Float64[Tensor, "B P Q 22 23"]:
    """Each element's share of the equations linearised about `flow`, and of what it leaves of them.

    (u·∇u, v) + ν (∇u, ∇v) − (p, ∇·v) − (f, v)  and  −(∇·u, q)  for all v and q, in the order of `ELEMENT`.
    """
    (gradient, area), shapes = mesh, shapes_on(mesh.area.device)
    u, p = _per_element(flow.velocity), _per_corner(flow.pressure)
    here, slope = shapes.phi @ u, u.mT[..., None, :, :] @ gradient  # u_a and ∂u_a/∂x_b where it is summed
    divergence = -shapes.psi.mT @ (area[..., None, None] * gradient).flatten(
        -2
    )  # 4 pressures × 18 velocities
    systems = area.new_zeros(*area.shape[:3], len(ELEMENT), len(ELEMENT) + 1)
    systems[..., :18, :18] = _momentum(mesh, here, slope, viscosity)
    systems[..., 18:, :18], systems[..., :18, 18:22] = divergence, divergence.mT
    systems[..., 18:, 22] = (divergence @ u.flatten(-2)[..., None])[..., 0]
    rate = area[..., None] * ((slope @ here[..., None])[..., 0] - shapes.phi @ _per_element(force))
    shear = viscosity * _rows(area[..., None, None] * gradient).mT @ _rows(slope)
    pushed = (divergence.mT @ p[..., None])[..., 0]
    systems[..., :18, 22] = (shapes.phi.mT @ rate + shear).flatten(-2) + pushed
    return _with_fixed(systems)


def _momentum(
    mesh: Mesh, here: Float64[Tensor, "B P Q q 2"], slope: Float64[Tensor, "B P Q q 2 2"], viscosity: float
) -> Float64[Tensor, "B P Q 18 18"]:
    """φ_i φ_j ∂u_a/∂x_b, and where a = b also φ_i u·∇φ_j + ν ∇φ_i·∇φ_j; rows (i, a), columns (j, b)."""
    (gradient, area), phi = mesh, shapes_on(mesh.area.device).phi
    products = (phi[:, :, None] * phi[:, None, :]).flatten(1)
    bent = (area[..., None, None] * slope).flatten(-2).mT @ products  # (a, b), (i, j)
    carried = (area[..., None] * phi).mT @ (gradient @ here[..., None])[..., 0]
    spread = viscosity * _rows(area[..., None, None] * gradient).mT @ _rows(gradient)
    block = bent.unflatten(-1, (9, 9)).unflatten(-3, (2, 2)).permute(0, 1, 2, 5, 3, 6, 4).contiguous()
    for a in range(2):
        block[..., a, :, a] += carried + spread
    return block.flatten(-2).flatten(-3, -2)


def _rows(field: PerElement) -> PerElement:
    """(…, q, c, 2) as (…, 2q, c): a product of two of these sums over points and both directions."""
    return field.movedim(-1, -3).flatten(-3, -2)


def _with_fixed(systems: Float64[Tensor, "B P Q 22 23"]) -> Float64[Tensor, "B P Q 22 23"]:
    """One on the diagonal for each velocity that is given, and nothing else in its row and column."""
    fixed = _fixed(systems.shape[1], systems.shape[2], systems.device)
    systems.masked_fill_(fixed[..., None], 0)
    systems[..., :-1].masked_fill_(fixed[..., None, :], 0)
    systems.diagonal(dim1=-2, dim2=-1).add_(fixed)
    return systems


@cache
def _fixed(along: int, across: int, device: torch.device) -> Bool[Tensor, "P Q 22"]:
    places = [
        [[is_fixed((kind, i + 2 * a, j + 2 * b), across) for kind, i, j in ELEMENT] for b in range(across)]
        for a in range(along)
    ]
    return torch.tensor(places, device=device)


def mesh_on(nodes: Nodes) -> Mesh:
    """Elements that are curved as their nodes are. A grid that folds over is an error."""
    shapes = shapes_on(nodes.device)
    along, across = _tangents(nodes, shapes)
    area = cross(along, across)
    _require_positive(area)
    turned = torch.stack([across.flip(-1), along.flip(-1)], dim=-2) * area.new_tensor([[1, -1], [-1, 1]])
    return Mesh(shapes.slope @ (turned / area[..., None, None]), shapes.weight * area)


def require_unfolded(nodes: Nodes) -> None:
    """An error for elements that fold over at a node, which points of quadrature do not see."""
    _require_positive(cross(*_tangents(nodes, shapes_on(nodes.device, at_nodes=True))))


def _tangents(nodes: Nodes, shapes: Shapes) -> tuple[PerElement, ...]:
    """∂x/∂ξ along the channel and across it."""
    return (_per_element(nodes).mT[..., None, :, :] @ shapes.slope).unbind(-1)


def _require_positive(area: Float64[Tensor, "B P Q q"]) -> None:
    if not (area > 0).all():
        first = int((~(area > 0).flatten(1).all(dim=1)).nonzero()[0])
        raise SampleError(
            first, "the grid folds over itself: expected nodes that run along the channel, then to its left"
        )


def cross(a: Float64[Tensor, "*S 2"], b: Float64[Tensor, "*S 2"]) -> Float64[Tensor, "*S"]:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


@cache
def shapes_on(device: torch.device, *, at_nodes: bool = False) -> Shapes:
    """At four Gauss points each way: u·∇u is integrated exactly where the elements are parallelograms. Or at
    the nodes, with the weights of Simpson's rule."""
    x, weight = np.polynomial.legendre.leggauss(4)
    x, weight = (x + 1) / 2, weight / 2
    if at_nodes:
        x, weight = np.array([0, 0.5, 1]), np.array([1, 4, 1]) / 6
    quadratic = (1 - x) * (1 - 2 * x), 4 * x * (1 - x), x * (2 * x - 1)
    slope, linear = (4 * x - 3, 4 - 8 * x, 4 * x - 1), {0: 1 - x, 2: x}
    phi = [np.outer(quadratic[i], quadratic[j]).ravel() for i, j in NODES]
    slopes = [
        (np.outer(slope[i], quadratic[j]).ravel(), np.outer(quadratic[i], slope[j]).ravel()) for i, j in NODES
    ]
    psi = [np.outer(linear[i], linear[j]).ravel() for i, j in CORNERS]
    arrays = (np.array(phi).T, np.moveaxis(np.array(slopes), 2, 0), np.array(psi).T)
    tensors = (torch.tensor(array, device=device) for array in (*arrays, np.outer(weight, weight).ravel()))
    return Shapes(*tensors)


def _per_element(field: Nodes) -> Float64[Tensor, "B P Q 9 2"]:
    """The vectors at the nodes of each element."""
    _, n, m, _ = field.shape
    return torch.stack([field[:, i : i + n - 2 : 2, j : j + m - 2 : 2] for i, j in NODES], dim=-2)


def _per_corner(field: Corners) -> Float64[Tensor, "B P Q 4"]:
    return field.unfold(1, 2, 1).unfold(2, 2, 1).flatten(-2)


def _joined(
    values: Float64[Tensor, "B P Q i c"], places: tuple[tuple[int, int], ...], step: int
) -> Float64[Tensor, "B n m c"]:
    """The field whose values the elements hold, `step` points apart."""
    batch, along, across, _, channels = values.shape
    field = values.new_empty(batch, step * along + 1, step * across + 1, channels)
    for at, (i, j) in enumerate(places):
        i, j = i * step // 2, j * step // 2
        field[:, i : i + step * along : step, j : j + step * across : step] = values[..., at, :]
    return field
