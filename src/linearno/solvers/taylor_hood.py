"""Taylor–Hood elements on structured grids: linearised steady Navier–Stokes, in batches.

Axes: B samples, P × Q elements along and across, n × m nodes (2P + 1, 2Q + 1), k × l corners (P + 1, Q + 1),
q quadrature points in an element.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from linearno.core.errors import SampleError
from linearno.solvers.linalg.nested_dissection import CORNERS, ELEMENT, NODES, is_fixed, solve_by_dissection

Nodes = Float64[Tensor, "B n m 2"]  # vectors at the nodes: positions, velocities, forces
Corners = Float64[Tensor, "B k l"]  # pressures
PerElement = Float64[Tensor, "B P Q ..."]


class Flow(NamedTuple):
    """Velocity at the nodes and pressure at the corners."""

    velocity: Nodes
    pressure: Corners


class ShapeFunctions(NamedTuple):
    """Shape functions of the reference element at its quadrature points.

    Args:
        phi: φ, biquadratic.
        slope: derivatives of φ along and across the element.
        psi: ψ, bilinear.
        weight: quadrature weights.
    """

    phi: Float64[Tensor, "q 9"]
    slope: Float64[Tensor, "q 9 2"]
    psi: Float64[Tensor, "q 4"]
    weight: Float64[Tensor, "q"]


class Mesh(NamedTuple):
    """Geometry of the elements: ∇φ and the area weight at each quadrature point."""

    gradient: Float64[Tensor, "B P Q q 9 2"]
    area: Float64[Tensor, "B P Q q"]


def newton_step(mesh: Mesh, flow: Flow, *, viscosity: float, force: Nodes) -> Flow:
    """One Newton step: solve the equations linearised about `flow`."""
    change = solve_by_dissection(element_systems(mesh, flow, viscosity, force))
    velocity, pressure = change[..., :18].unflatten(-1, (9, 2)), change[..., 18:, None]
    return Flow(
        flow.velocity - _to_grid(velocity, NODES, 2), flow.pressure - _to_grid(pressure, CORNERS, 1)[..., 0]
    )


def element_systems(mesh: Mesh, flow: Flow, viscosity: float, force: Nodes) -> Float64[Tensor, "B P Q 22 23"]:
    """Element matrices of the equations linearised about `flow`, with the residuals as last column.

    (u·∇u, v) + ν (∇u, ∇v) − (p, ∇·v) − (f, v)  and  −(∇·u, q)  for all v and q, in the order of `ELEMENT`.
    """
    (gradient, area), shapes = mesh, shape_functions(mesh.area.device)
    u, p = _at_element_nodes(flow.velocity), _at_corners(flow.pressure)
    velocity, slope = shapes.phi @ u, u.mT[..., None, :, :] @ gradient  # u_a and ∂u_a/∂x_b at the points
    weighted = (area[..., None, None] * gradient).flatten(-2)
    divergence = -shapes.psi.mT @ weighted  # 4 pressures × 18 velocities
    systems = area.new_zeros(*area.shape[:3], len(ELEMENT), len(ELEMENT) + 1)
    systems[..., :18, :18] = _momentum_matrix(mesh, velocity, slope, viscosity)
    systems[..., 18:, :18], systems[..., :18, 18:22] = divergence, divergence.mT
    systems[..., 18:, 22] = (divergence @ u.flatten(-2)[..., None])[..., 0]
    rate = area[..., None] * ((slope @ velocity[..., None])[..., 0] - shapes.phi @ _at_element_nodes(force))
    shear = viscosity * _flat_points(area[..., None, None] * gradient).mT @ _flat_points(slope)
    pressure = (divergence.mT @ p[..., None])[..., 0]
    systems[..., :18, 22] = (shapes.phi.mT @ rate + shear).flatten(-2) + pressure
    return _fix_velocities(systems)


def _momentum_matrix(
    mesh: Mesh,
    velocity: Float64[Tensor, "B P Q q 2"],
    slope: Float64[Tensor, "B P Q q 2 2"],
    viscosity: float,
) -> Float64[Tensor, "B P Q 18 18"]:
    """φ_i φ_j ∂u_a/∂x_b, and where a = b also φ_i u·∇φ_j + ν ∇φ_i·∇φ_j; rows (i, a), columns (j, b)."""
    (gradient, area), phi = mesh, shape_functions(mesh.area.device).phi
    products = (phi[:, :, None] * phi[:, None, :]).flatten(1)
    reaction = (area[..., None, None] * slope).flatten(-2).mT @ products  # (a, b), (i, j)
    advection = (area[..., None] * phi).mT @ (gradient @ velocity[..., None])[..., 0]
    diffusion = viscosity * _flat_points(area[..., None, None] * gradient).mT @ _flat_points(gradient)
    block = reaction.unflatten(-1, (9, 9)).unflatten(-3, (2, 2)).permute(0, 1, 2, 5, 3, 6, 4).contiguous()
    for a in range(2):
        block[..., a, :, a] += advection + diffusion
    return block.flatten(-2).flatten(-3, -2)


def _flat_points(field: PerElement) -> PerElement:
    """(…, q, c, 2) as (…, 2q, c), so that a matrix product sums over points and both directions."""
    return field.movedim(-1, -3).flatten(-3, -2)


def _fix_velocities(systems: Float64[Tensor, "B P Q 22 23"]) -> Float64[Tensor, "B P Q 22 23"]:
    """Replace rows and columns of fixed velocities by rows and columns of the identity, in place."""
    fixed = _fixed_unknowns(systems.shape[1], systems.shape[2], systems.device)
    systems.masked_fill_(fixed[..., None], 0)
    systems[..., :-1].masked_fill_(fixed[..., None, :], 0)
    systems.diagonal(dim1=-2, dim2=-1).add_(fixed)
    return systems


@cache
def _fixed_unknowns(along: int, across: int, device: torch.device) -> Bool[Tensor, "P Q 22"]:
    fixed = [
        [[is_fixed((kind, i + 2 * a, j + 2 * b), across) for kind, i, j in ELEMENT] for b in range(across)]
        for a in range(along)
    ]
    return torch.tensor(fixed, device=device)


def build_mesh(nodes: Nodes) -> Mesh:
    """Isoparametric elements; raises if the grid folds over itself."""
    shapes = shape_functions(nodes.device)
    along, across = _tangents(nodes, shapes)
    area = cross(along, across)
    _require_positive(area)
    normals = torch.stack([across.flip(-1), along.flip(-1)], dim=-2) * area.new_tensor([[1, -1], [-1, 1]])
    return Mesh(shapes.slope @ (normals / area[..., None, None]), shapes.weight * area)


def require_unfolded(nodes: Nodes) -> None:
    """Raise if an element folds over at a node, which quadrature points may miss."""
    _require_positive(cross(*_tangents(nodes, shape_functions(nodes.device, at_nodes=True))))


def _tangents(nodes: Nodes, shapes: ShapeFunctions) -> tuple[PerElement, ...]:
    """∂x/∂ξ along and across the channel."""
    return (_at_element_nodes(nodes).mT[..., None, :, :] @ shapes.slope).unbind(-1)


def _require_positive(area: Float64[Tensor, "B P Q q"]) -> None:
    if not (area > 0).all():
        first = int((~(area > 0).flatten(1).all(dim=1)).nonzero()[0])
        raise SampleError(
            first, "the grid folds over itself: expected nodes along the channel, then from right to left"
        )


def cross(a: Float64[Tensor, "*S 2"], b: Float64[Tensor, "*S 2"]) -> Float64[Tensor, "*S"]:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


@cache
def shape_functions(device: torch.device, *, at_nodes: bool = False) -> ShapeFunctions:
    """Shape functions at 4 × 4 Gauss points, exact for u·∇u on parallelograms; or at the nodes."""
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
    return ShapeFunctions(*tensors)


def _at_element_nodes(field: Nodes) -> Float64[Tensor, "B P Q 9 2"]:
    _, n, m, _ = field.shape
    return torch.stack([field[:, i : i + n - 2 : 2, j : j + m - 2 : 2] for i, j in NODES], dim=-2)


def _at_corners(field: Corners) -> Float64[Tensor, "B P Q 4"]:
    return field.unfold(1, 2, 1).unfold(2, 2, 1).flatten(-2)


def _to_grid(
    values: Float64[Tensor, "B P Q i c"], offsets: tuple[tuple[int, int], ...], step: int
) -> Float64[Tensor, "B n m c"]:
    """Field on a grid with `step` intervals per element from the values of the elements.

    Args:
        values: values of each element.
        offsets: positions of the values in an element, in half elements.
        step: grid intervals per element.
    """
    batch, along, across, _, channels = values.shape
    field = values.new_empty(batch, step * along + 1, step * across + 1, channels)
    for at, (i, j) in enumerate(offsets):
        i, j = i * step // 2, j * step // 2
        field[:, i : i + step * along : step, j : j + step * across : step] = values[..., at, :]
    return field
