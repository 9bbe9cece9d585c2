"""Finite volumes for the Euler equations of a gas on structured grids, many grids at once.

Unknowns live at the nodes; around each lies a cell whose corners are the middles of the grid's quads and
edges. A grid may be cut: the first and last `cut` nodes of its first line are then the same points, met from
both sides, as in the wake of a C-grid. The rest of that line is a wall, the rest of the border a far field.

Axes: B samples, I nodes along the wall, J away from it. The parts of a state W are density, velocity along x
and y, and pressure.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import pad

GAMMA = 1.4
SMOOTH = 0.01  # differences whose squares are below this are hardly limited, so that the march can end
ROUND = 0.05  # of the speed of sound: slower waves are spread a little, so that fluxes have a slope
STRETCH = 2.0  # more than this times the length of an edge, nothing is extrapolated from it
STEP = 1e-7  # between states whose fluxes are compared to get a slope

Nodes = Float64[Tensor, "B I J 2"]
State = Float64[Tensor, "B 4 I J"]
Faces = Float[Tensor, "B 4 _ _"]
Normals = Float[Tensor, "B 2 _ _"]
Block = Float[Tensor, "B I J 4 4"]  # at each node or face; the last axis belongs to W
Parts = tuple[Tensor, ...]  # of a state, apart


class Sides(NamedTuple):
    """Faces between neighbours along an axis: their normals, and the lengths of edges against each other."""

    normal: Normals
    before: Float[Tensor, "B 1 _ _"]  # an edge's length over that of the edge before it
    after: Float[Tensor, "B 1 _ _"]  # and over that of the edge after it


class Grid(NamedTuple):
    """What the equations need to know of a grid. Normals point along the axes, or out at the border."""

    cut: Bool[Tensor, "I"]  # nodes of the first line that are there twice
    volume: Float[Tensor, "B I J"]
    along: Sides
    across: Sides
    wall: Normals
    far: Normals
    ends: tuple[Normals, Normals]


class Blocks(NamedTuple):
    """dR/dW of the scheme without reconstruction: a node's own columns and those of its neighbours."""

    own: Block
    before: Block  # along
    after: Block
    below: Block  # across
    above: Block


def grid_of(nodes: Nodes, cut: int) -> Grid:
    """The cells around the nodes of grids whose J lies to the right of I."""
    fine = halved(nodes)
    here = torch.arange(nodes.shape[1], device=nodes.device)
    twice = (here < cut) | (here >= nodes.shape[1] - cut)
    middles_along, middles_across = dual(fine[:, 1::2], 2), dual(fine[:, :, 1::2], 1)
    first = turned(fine[:, :, 0].diff(dim=1))  # half edges of the first line, each belongs to a node
    on_wall = ~(twice[1:] & twice[:-1]) if cut else torch.ones_like(twice[1:])
    halves = (first * on_wall.repeat_interleave(2)[:, None]).movedim(-1, 1)
    wall = pad(halves, (1, 1)).unflatten(-1, (-1, 2)).sum(dim=-1)
    ends = [turned(dual(fine[:, at], 1).diff(dim=1)).movedim(-1, 1)[:, :, None] for at in (0, -1)]
    return Grid(
        twice,
        shared(cell_areas(fine), twice),
        _sides(nodes, -turned(middles_along.diff(dim=2)), 1, twice),
        _sides(nodes, turned(middles_across.diff(dim=1)), 2, twice),
        -wall[..., None],
        turned(dual(fine[:, :, -1], 1).diff(dim=1)).movedim(-1, 1)[..., None],
        (ends[0], -ends[1]),
    )


def halved(nodes: Nodes) -> Float64[Tensor, "B _ _ 2"]:
    """The nodes with the middles of edges and quads between them."""
    for axis in (1, 2):
        nodes = nodes.movedim(axis, 1)
        middles = (nodes[:, 1:] + nodes[:, :-1]) / 2
        woven = torch.stack([nodes[:, :-1], middles], dim=2).flatten(1, 2)
        nodes = torch.cat([woven, nodes[:, -1:]], dim=1).movedim(1, axis)
    return nodes


def dual(line: Float[Tensor, "... 2"], axis: int) -> Float[Tensor, "... 2"]:
    """Of a halved line its middles, and its two ends."""
    line = line.movedim(axis, 1)
    return torch.cat([line[:, :1], line[:, 1::2], line[:, -1:]], dim=1).movedim(1, axis)


def turned(edge: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """Normals to the right of edges."""
    return torch.stack([edge[..., 1], -edge[..., 0]], dim=-1)


def quad_areas(nodes: Nodes) -> Float[Tensor, "B I-1 J-1"]:
    """Half the product of the diagonals, positive where J lies to the right of I."""
    ax, ay = (nodes[:, 1:, 1:] - nodes[:, :-1, :-1]).unbind(-1)
    bx, by = (nodes[:, :-1, 1:] - nodes[:, 1:, :-1]).unbind(-1)
    return (ay * bx - ax * by) / 2


def cell_areas(fine: Float64[Tensor, "B _ _ 2"]) -> Float[Tensor, "B _ _"]:
    quarters = pad(quad_areas(fine), (1, 1, 1, 1))
    return quarters.unflatten(-1, (-1, 2)).unflatten(1, (-1, 2)).sum(dim=(2, 4))


def shared(values: Float[Tensor, "... I J"], cut: Bool[Tensor, "I"]) -> Float[Tensor, "... I J"]:
    """Values of half cells on both sides of the cut become their sum."""
    first = values[..., 0]
    values[..., 0] = first + torch.where(cut, first.flip(-1), 0)
    return values


def _sides(nodes: Nodes, normal: Float[Tensor, "B _ _ 2"], axis: int, cut: Bool[Tensor, "I"]) -> Sides:
    length = nodes.diff(dim=axis).norm(dim=-1)[:, None]
    before, after = _neighbours(length, axis + 1, cut, sign=1)
    return Sides(normal.movedim(-1, 1), *((length / other).clamp(max=STRETCH) for other in (before, after)))


def _neighbours(edges: Tensor, axis: int, cut: Bool[Tensor, "I"], sign: int) -> tuple[Tensor, Tensor]:
    """The edges before and after each edge, itself where there is none; across a cut, with that sign."""
    first = edges.narrow(axis, 0, 1)
    if axis == 3:
        first = torch.where(cut[:, None], sign * first.flip(2), first)
    before = torch.cat([first, edges.narrow(axis, 0, edges.shape[axis] - 1)], dim=axis)
    after = torch.cat([edges.narrow(axis, 1, edges.shape[axis] - 1), edges.narrow(axis, -1, 1)], dim=axis)
    return before, after


def residual(grid: Grid, state: State, outside: State) -> State:
    """What flows out of each cell: mass, momentum and energy a unit of time.

    Roe's flux between states that are linear along grid lines, limited after van Albada; at the wall nothing
    but pressure, at the far field Roe's flux against `outside`. Second order; both nodes of a pair at the cut
    get all that leaves their cell.
    """
    total = torch.zeros_like(state)
    for axis, sides in ((2, grid.along), (3, grid.across)):
        flux = roe(*_at_faces(state, sides, axis, grid.cut), sides.normal)
        total.narrow(axis, 0, state.shape[axis] - 1).add_(flux)
        total.narrow(axis, 1, state.shape[axis] - 1).sub_(flux)
    total[..., :1] += wall_flux(state[..., :1], grid.wall)
    total[..., -1:] += roe(state[..., -1:], outside[..., -1:], grid.far)
    total[:, :, :1] += roe(state[:, :, :1], outside[:, :, :1], grid.ends[0])
    total[:, :, -1:] += roe(state[:, :, -1:], outside[:, :, -1:], grid.ends[1])
    return shared(total, grid.cut)


def _at_faces(state: State, sides: Sides, axis: int, cut: Bool[Tensor, "I"]) -> tuple[Faces, Faces]:
    """The state on both sides of each face between neighbours."""
    steps = state.diff(dim=axis)
    before, after = _neighbours(steps, axis, cut, sign=-1)
    nodes = state.shape[axis] - 1
    left = state.narrow(axis, 0, nodes) + limited(before * sides.before, steps) / 2
    right = state.narrow(axis, 1, nodes) - limited(after * sides.after, steps) / 2
    return left, right


def limited(a: Tensor, b: Tensor) -> Tensor:
    """Van Albada's mean: (a + b)/2 where they agree or are small, near zero where they do not."""
    aa, bb = a * a + SMOOTH, b * b + SMOOTH
    return (a * bb + b * aa) / (aa + bb)


def roe(left: Faces, right: Faces, normal: Normals) -> Faces:
    return torch.stack(_roe(left.unbind(1), right.unbind(1), normal), dim=1)


def wall_flux(state: Faces, normal: Normals) -> Faces:
    return torch.stack(_wall(state.unbind(1), normal), dim=1)


def _wall(state: Parts, normal: Normals) -> Parts:
    (nx, ny), p = normal.unbind(1), state[3]
    return torch.zeros_like(p), p * nx, p * ny, torch.zeros_like(p)


def _roe(left: Parts, right: Parts, normal: Normals) -> Parts:
    """Mean flux through a face, less half of what its waves carry at their speeds."""
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
    least = (ROUND * ROUND) * cc
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
    """The sum over a cell's inner faces of |u·n| + c|n|: what limits its step in time, times its volume."""
    density, u, v, pressure = state.unbind(1)
    total, c = torch.zeros_like(density), torch.sqrt(GAMMA * pressure / density)
    for axis, sides in ((1, grid.along), (2, grid.across)):
        nx, ny = sides.normal.unbind(1)
        nodes = state.shape[axis + 1] - 1
        size = torch.sqrt(nx * nx + ny * ny)
        for start in (0, 1):
            un, vn, cn = (part.narrow(axis, start, nodes) for part in (u, v, c))
            total.narrow(axis, start, nodes).add_((un * nx + vn * ny).abs() + cn * size)
    return total


def blocks_of(grid: Grid, state: State, outside: State) -> Blocks:
    """The slopes of what flows out of each cell (of half a cell at the cut) with no reconstruction."""
    own = state.new_zeros(*grid.volume.shape, 4, 4)
    beside = []
    for axis, sides in ((2, grid.along), (3, grid.across)):
        nodes = state.shape[axis] - 1
        left, right = state.narrow(axis, 0, nodes), state.narrow(axis, 1, nodes)
        by_left, by_right = _by_left(left, right, sides.normal), _by_right(left, right, sides.normal)
        own.narrow(axis - 1, 0, nodes).add_(by_left)
        own.narrow(axis - 1, 1, nodes).sub_(by_right)
        lower, upper = torch.zeros_like(own), torch.zeros_like(own)
        lower.narrow(axis - 1, 1, nodes).sub_(by_left)
        upper.narrow(axis - 1, 0, nodes).add_(by_right)
        beside += [lower, upper]
    own[:, :, :1] += _columns(lambda *parts: _wall(parts, grid.wall), state[..., :1])
    own[:, :, -1:] += _by_left(state[..., -1:], outside[..., -1:], grid.far)
    own[:, :1] += _by_left(state[:, :, :1], outside[:, :, :1], grid.ends[0])
    own[:, -1:] += _by_left(state[:, :, -1:], outside[:, :, -1:], grid.ends[1])
    return Blocks(own, *beside)


def _by_left(left: Faces, right: Faces, normal: Normals) -> Block:
    return _columns(lambda *parts: _roe(parts, right.unbind(1), normal), left)


def _by_right(left: Faces, right: Faces, normal: Normals) -> Block:
    return _columns(lambda *parts: _roe(left.unbind(1), parts, normal), right)


def _columns(flux: Callable[..., Parts], state: Faces) -> Block:
    """The slopes of a flux as matrices, by differences."""
    parts = state.unbind(1)
    base, found = torch.stack(flux(*parts), dim=-1), []
    for at in range(4):
        moved = (part + STEP if at == k else part for k, part in enumerate(parts))
        found.append((torch.stack(flux(*moved), dim=-1) - base) / STEP)
    return torch.stack(found, dim=-1)


def conserved_by_state(state: State) -> Block:
    """The slopes of mass, momentum and energy in a unit of volume."""

    def conserved(d: Tensor, u: Tensor, v: Tensor, p: Tensor) -> Parts:
        return d, d * u, d * v, p / (GAMMA - 1) + d * (u * u + v * v) / 2

    return _columns(conserved, state)


def mach(state: State) -> Float64[Tensor, "B I J"]:
    density, u, v, pressure = state.unbind(1)
    return torch.sqrt((u * u + v * v) * density / (GAMMA * pressure))
