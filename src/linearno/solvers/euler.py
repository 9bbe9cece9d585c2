"""Finite volumes for the compressible Euler equations on structured grids, in batches.

Unknowns are at the nodes; the cell of a node has its corners at the middles of the grid's quads and edges.
The first line of a grid may have a cut: its first and last `cut` nodes are the same points on two sides, as
in the wake of a C-grid. The rest of that line is a wall, the other borders are the far field.

Axes: B samples, I nodes along the wall, J away from it. The channels of a state W are density, velocity along
x and y, and pressure.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from linearno.solvers.linalg.c_grid_elimination import Block, StencilBlocks

GAMMA = 1.4
LIMITER_FLOOR = 0.01  # smaller squared differences are hardly limited, so that the march converges
ENTROPY_FIX = 0.05  # smooths wave speeds below this fraction of the speed of sound
MAX_EDGE_RATIO = 2.0  # bound on the length ratio of neighbouring edges in the reconstruction
DIFFERENCE_STEP = 1e-7  # of the finite differences of fluxes

Nodes = Float64[Tensor, "B I J 2"]
State = Float64[Tensor, "B 4 I J"]
Faces = Float[Tensor, "B 4 _ _"]
Normals = Float[Tensor, "B 2 _ _"]
Channels = tuple[Tensor, ...]  # of a state, one tensor each


class InnerFaces(NamedTuple):
    """Faces between neighbours along an axis.

    Args:
        normal: along the axis, with the length of the face.
        before: length of the edge across each face over that of the edge before it.
        after: length of the edge over that of the edge after it.
    """

    normal: Normals
    before: Float[Tensor, "B 1 _ _"]
    after: Float[Tensor, "B 1 _ _"]


class Grid(NamedTuple):
    """Geometry of the cells around the nodes.

    Args:
        cut: which nodes of the first line are stored twice.
        volume: area of each cell; of the whole cell at both nodes of a pair.
        along: faces between neighbours along the wall.
        across: faces between neighbours away from the wall.
        wall: outward normals of the cells on the first line, zero on the cut.
        far: outward normals at the last line.
        ends: outward normals at the first and the last row of nodes.
    """

    cut: Bool[Tensor, "I"]
    volume: Float[Tensor, "B I J"]
    along: InnerFaces
    across: InnerFaces
    wall: Normals
    far: Normals
    ends: tuple[Normals, Normals]


def build_grid(nodes: Nodes, cut: int) -> Grid:
    """Cells around the nodes of grids whose J axis lies to the right of the I axis."""
    fine = refine(nodes)
    index = torch.arange(nodes.shape[1], device=nodes.device)
    paired = (index < cut) | (index >= nodes.shape[1] - cut)
    corners_along, corners_across = _cell_corners(fine[:, 1::2], 2), _cell_corners(fine[:, :, 1::2], 1)
    half_edges = _right_normals(fine[:, :, 0].diff(dim=1))  # of the first line; one per node and side
    on_wall = ~(paired[1:] & paired[:-1]) if cut else torch.ones_like(paired[1:])
    half_edges = (half_edges * on_wall.repeat_interleave(2)[:, None]).movedim(-1, 1)
    wall = pad(half_edges, (1, 1)).unflatten(-1, (-1, 2)).sum(dim=-1)
    ends = [
        _right_normals(_cell_corners(fine[:, at], 1).diff(dim=1)).movedim(-1, 1)[:, :, None] for at in (0, -1)
    ]
    return Grid(
        paired,
        add_across_cut(_cell_areas(fine), paired),
        _inner_faces(nodes, -_right_normals(corners_along.diff(dim=2)), 1, paired),
        _inner_faces(nodes, _right_normals(corners_across.diff(dim=1)), 2, paired),
        -wall[..., None],
        _right_normals(_cell_corners(fine[:, :, -1], 1).diff(dim=1)).movedim(-1, 1)[..., None],
        (ends[0], -ends[1]),
    )


def refine(nodes: Nodes) -> Float64[Tensor, "B _ _ 2"]:
    """Insert the middles of edges and quads between the nodes."""
    for axis in (1, 2):
        nodes = nodes.movedim(axis, 1)
        middles = (nodes[:, 1:] + nodes[:, :-1]) / 2
        interleaved = torch.stack([nodes[:, :-1], middles], dim=2).flatten(1, 2)
        nodes = torch.cat([interleaved, nodes[:, -1:]], dim=1).movedim(1, axis)
    return nodes


def _cell_corners(line: Float[Tensor, "... 2"], axis: int) -> Float[Tensor, "... 2"]:
    """Corners of the cells: middles between the nodes of a refined line, and its two ends."""
    line = line.movedim(axis, 1)
    return torch.cat([line[:, :1], line[:, 1::2], line[:, -1:]], dim=1).movedim(1, axis)


def _right_normals(edges: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    return torch.stack([edges[..., 1], -edges[..., 0]], dim=-1)


def quad_areas(nodes: Nodes) -> Float[Tensor, "B I-1 J-1"]:
    """Half the cross product of the diagonals, positive where J lies to the right of I."""
    ax, ay = (nodes[:, 1:, 1:] - nodes[:, :-1, :-1]).unbind(-1)
    bx, by = (nodes[:, :-1, 1:] - nodes[:, 1:, :-1]).unbind(-1)
    return (ay * bx - ax * by) / 2


def _cell_areas(fine: Float64[Tensor, "B _ _ 2"]) -> Float[Tensor, "B _ _"]:
    quarters = pad(quad_areas(fine), (1, 1, 1, 1))
    return quarters.unflatten(-1, (-1, 2)).unflatten(1, (-1, 2)).sum(dim=(2, 4))


def add_across_cut(values: Float[Tensor, "... I J"], cut: Bool[Tensor, "I"]) -> Float[Tensor, "... I J"]:
    """Replace the values of half cells on both sides of the cut by their sum, in place."""
    first = values[..., 0]
    values[..., 0] = first + torch.where(cut, first.flip(-1), 0)
    return values


def _inner_faces(
    nodes: Nodes, normal: Float[Tensor, "B _ _ 2"], axis: int, cut: Bool[Tensor, "I"]
) -> InnerFaces:
    length = nodes.diff(dim=axis).norm(dim=-1)[:, None]
    ratios = ((length / other).clamp(max=MAX_EDGE_RATIO) for other in _neighbours(length, axis + 1, cut, 1))
    return InnerFaces(normal.movedim(-1, 1), *ratios)


def _neighbours(edges: Tensor, axis: int, cut: Bool[Tensor, "I"], sign: int) -> tuple[Tensor, Tensor]:
    """The edges before and after each edge: the edge itself at the border, times `sign` across the cut."""
    first = edges.narrow(axis, 0, 1)
    if axis == 3:
        first = torch.where(cut[:, None], sign * first.flip(2), first)
    before = torch.cat([first, edges.narrow(axis, 0, edges.shape[axis] - 1)], dim=axis)
    after = torch.cat([edges.narrow(axis, 1, edges.shape[axis] - 1), edges.narrow(axis, -1, 1)], dim=axis)
    return before, after


def residual(grid: Grid, state: State, outside: State) -> State:
    """Net outflow of mass, momentum and energy from each cell per unit of time.

    Roe's flux between states reconstructed linearly along grid lines with van Albada's limiter; pressure flux
    at the wall; Roe's flux against `outside` at the far field. Second order. Both nodes of a pair on the cut
    get the outflow of their whole cell.
    """
    total = torch.zeros_like(state)
    for axis, faces in ((2, grid.along), (3, grid.across)):
        flux = roe(*_face_states(state, faces, axis, grid.cut), faces.normal)
        total.narrow(axis, 0, state.shape[axis] - 1).add_(flux)
        total.narrow(axis, 1, state.shape[axis] - 1).sub_(flux)
    total[..., :1] += wall_flux(state[..., :1], grid.wall)
    total[..., -1:] += roe(state[..., -1:], outside[..., -1:], grid.far)
    total[:, :, :1] += roe(state[:, :, :1], outside[:, :, :1], grid.ends[0])
    total[:, :, -1:] += roe(state[:, :, -1:], outside[:, :, -1:], grid.ends[1])
    return add_across_cut(total, grid.cut)


def _face_states(state: State, faces: InnerFaces, axis: int, cut: Bool[Tensor, "I"]) -> tuple[Faces, Faces]:
    """Reconstructed states on both sides of each inner face."""
    steps = state.diff(dim=axis)
    before, after = _neighbours(steps, axis, cut, sign=-1)
    nodes = state.shape[axis] - 1
    left = state.narrow(axis, 0, nodes) + van_albada(before * faces.before, steps) / 2
    right = state.narrow(axis, 1, nodes) - van_albada(after * faces.after, steps) / 2
    return left, right


def van_albada(a: Tensor, b: Tensor) -> Tensor:
    """Limited mean of two differences: (a + b)/2 where they agree or are small, else near zero."""
    aa, bb = a * a + LIMITER_FLOOR, b * b + LIMITER_FLOOR
    return (a * bb + b * aa) / (aa + bb)


def roe(left: Faces, right: Faces, normal: Normals) -> Faces:
    """Roe's flux through faces."""
    return torch.stack(_roe(left.unbind(1), right.unbind(1), normal), dim=1)


def wall_flux(state: Faces, normal: Normals) -> Faces:
    """Flux through a slip wall: pressure only."""
    return torch.stack(_wall(state.unbind(1), normal), dim=1)


def _wall(state: Channels, normal: Normals) -> Channels:
    (nx, ny), p = normal.unbind(1), state[3]
    return torch.zeros_like(p), p * nx, p * ny, torch.zeros_like(p)


def _roe(left: Channels, right: Channels, normal: Normals) -> Channels:
    """Roe's flux: mean flux minus half the sum of waves times absolute wave speeds."""
    nx, ny = normal.unbind(1)
    size = torch.sqrt(nx * nx + ny * ny)
    ex, ey = nx / size, ny / size
    (d_l, u_l, v_l, p_l), (d_r, u_r, v_r, p_r) = left, right
    n_l, n_r = u_l * ex + v_l * ey, u_r * ex + v_r * ey
    gain = GAMMA / (GAMMA - 1)
    h_l = gain * p_l / d_l + (u_l * u_l + v_l * v_l) / 2
    h_r = gain * p_r / d_r + (u_r * u_r + v_r * v_r) / 2
    ratio = torch.sqrt(d_r / d_l)
    share = ratio / (1 + ratio)
    d, u, v, h = ratio * d_l, u_l + share * (u_r - u_l), v_l + share * (v_r - v_l), h_l + share * (h_r - h_l)
    n, half = u * ex + v * ey, (u * u + v * v) / 2
    cc = (GAMMA - 1) * (h - half)
    c = torch.sqrt(cc)
    dn, dp = n_r - n_l, p_r - p_l
    least = (ENTROPY_FIX * ENTROPY_FIX) * cc
    slow, still, fast = (torch.sqrt(s * s + least) for s in (n - c, n, n + c))
    down, up = slow * (dp - d * c * dn) / (2 * cc), fast * (dp + d * c * dn) / (2 * cc)
    rest, slip = still * (d_r - d_l - dp / cc), still * d
    du, dv = u_r - u_l - dn * ex, v_r - v_l - dn * ey
    both, lift = down + up + rest, c * (up - down)
    m_l, m_r, p = d_l * n_l, d_r * n_r, p_l + p_r
    half_size = size / 2
    return (
        half_size * (m_l + m_r - both),
        half_size * (m_l * u_l + m_r * u_r + p * ex - (both * u + lift * ex + slip * du)),
        half_size * (m_l * v_l + m_r * v_r + p * ey - (both * v + lift * ey + slip * dv)),
        half_size
        * (m_l * h_l + m_r * h_r - ((down + up) * h + rest * half + lift * n + slip * (u * du + v * dv))),
    )


def wave_speeds(grid: Grid, state: State) -> Float[Tensor, "B I J"]:
    """Σ |u·n| + c|n| over the inner faces of each cell; bounds the time step by volume over wave speed."""
    density, u, v, pressure = state.unbind(1)
    total, c = torch.zeros_like(density), torch.sqrt(GAMMA * pressure / density)
    for axis, faces in ((1, grid.along), (2, grid.across)):
        nx, ny = faces.normal.unbind(1)
        nodes = state.shape[axis + 1] - 1
        size = torch.sqrt(nx * nx + ny * ny)
        for start in (0, 1):
            un, vn, cn = (part.narrow(axis, start, nodes) for part in (u, v, c))
            total.narrow(axis, start, nodes).add_((un * nx + vn * ny).abs() + cn * size)
    return total


def residual_jacobian(grid: Grid, state: State, outside: State) -> StencilBlocks:
    """dR/dW of the first-order scheme (no reconstruction); of half a cell at nodes on the cut."""
    own = state.new_zeros(*grid.volume.shape, 4, 4)
    neighbours = []
    for axis, faces in ((2, grid.along), (3, grid.across)):
        nodes = state.shape[axis] - 1
        left, right = state.narrow(axis, 0, nodes), state.narrow(axis, 1, nodes)
        by_left = _roe_jacobian_left(left, right, faces.normal)
        by_right = _roe_jacobian_right(left, right, faces.normal)
        own.narrow(axis - 1, 0, nodes).add_(by_left)
        own.narrow(axis - 1, 1, nodes).sub_(by_right)
        lower, upper = torch.zeros_like(own), torch.zeros_like(own)
        lower.narrow(axis - 1, 1, nodes).sub_(by_left)
        upper.narrow(axis - 1, 0, nodes).add_(by_right)
        neighbours += [lower, upper]
    own[:, :, :1] += _jacobian(lambda *parts: _wall(parts, grid.wall), state[..., :1])
    own[:, :, -1:] += _roe_jacobian_left(state[..., -1:], outside[..., -1:], grid.far)
    own[:, :1] += _roe_jacobian_left(state[:, :, :1], outside[:, :, :1], grid.ends[0])
    own[:, -1:] += _roe_jacobian_left(state[:, :, -1:], outside[:, :, -1:], grid.ends[1])
    return StencilBlocks(own, *neighbours)


def _roe_jacobian_left(left: Faces, right: Faces, normal: Normals) -> Block:
    return _jacobian(lambda *parts: _roe(parts, right.unbind(1), normal), left)


def _roe_jacobian_right(left: Faces, right: Faces, normal: Normals) -> Block:
    return _jacobian(lambda *parts: _roe(left.unbind(1), parts, normal), right)


def _jacobian(flux: Callable[..., Channels], state: Faces) -> Block:
    """Derivatives of a flux by finite differences; one column per channel of W."""
    parts = state.unbind(1)
    base, columns = torch.stack(flux(*parts), dim=-1), []
    for at in range(4):
        moved = (part + DIFFERENCE_STEP if at == k else part for k, part in enumerate(parts))
        columns.append((torch.stack(flux(*moved), dim=-1) - base) / DIFFERENCE_STEP)
    return torch.stack(columns, dim=-1)


def conserved_jacobian(state: State) -> Block:
    """Derivatives of the conserved densities (mass, momentum, energy) with respect to W."""

    def conserved(d: Tensor, u: Tensor, v: Tensor, p: Tensor) -> Channels:
        return d, d * u, d * v, p / (GAMMA - 1) + d * (u * u + v * v) / 2

    return _jacobian(conserved, state)


def mach_number(state: State) -> Float64[Tensor, "B I J"]:
    density, u, v, pressure = state.unbind(1)
    return torch.sqrt((u * u + v * v) * density / (GAMMA * pressure))
