"""Walls and sides of the lattice Boltzmann method: populations that enter the fluid.

A population that enters a fluid cell from a body or from outside of the box is written to the cell it comes
from, before all cells pull the populations of their neighbours. One fluid cell only reads each such slot.

Axes: L links between fluid and solid cells, K slots of a side, Q = 19 populations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from linearno.core.errors import look_up

VELOCITIES: list[tuple[int, int, int]] = [
    (0, 0, 0),
    *((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)),
    *((1, 1, 0), (-1, -1, 0), (1, -1, 0), (-1, 1, 0)),
    *((1, 0, 1), (-1, 0, -1), (1, 0, -1), (-1, 0, 1)),
    *((0, 1, 1), (0, -1, -1), (0, 1, -1), (0, -1, 1)),
]  # opposite velocities are neighbours
WEIGHTS = [1 / 3] + [1 / 18] * 6 + [1 / 36] * 12
OPPOSITE = [VELOCITIES.index((-a, -b, -c)) for a, b, c in VELOCITIES]
MIN_LINK, MAX_LINK = 0.05, 1.0  # bounds of the distance of a wall along a link
DAMPING = 0.1  # share of the free stream at damped sides

SIDES = {
    "periodic": "opposite sides are joined",
    "mirror": "plane of symmetry, or wall with full slip",
    "damped": "mirror that absorbs sound",
    "inlet": "equilibrium of the free stream",
    "outlet": "density 1",
}
Sides = tuple[str, str, str, str, str, str]  # keys of SIDES: lower and upper side of x, of y and of z


Arrays = TypeVar("Arrays", "SlotCopies", "WallLinks")


def on_device(arrays: Arrays, device: torch.device, dtype: torch.dtype) -> Arrays:
    """A dataclass with its tensors on a device; real numbers get the type `dtype`."""
    parts = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    moved: dict[str, Any] = {
        name: part.to(device, dtype if part.is_floating_point() else part.dtype)
        for name, part in parts.items()
        if isinstance(part, Tensor)
    }
    return replace(arrays, **moved)


@dataclass(frozen=True)
class SlotCopies:
    """Slots outside of two opposite sides:  g[slot] = scale g[source] + constant − weight Σ_q g_q(cell).

    Args:
        slot: index of each slot in the populations of a flow.
        source: index of the population that it depends on.
        scale: factor of that population.
        constant: added value.
        weight: factor of r in the adjacent cell, for outlets; else 0.
        outlets: numbers of the slots whose `weight` is not 0.
        cell: cell next to each of these.
        cells: number of cells of a flow, with halo.
    """

    slot: Int[Tensor, "K"]
    source: Int[Tensor, "K"]
    scale: Float[Tensor, "K"]
    constant: Float[Tensor, "K"]
    weight: Float[Tensor, "K"]
    outlets: Int[Tensor, "O"]
    cell: Int[Tensor, "O"]
    cells: int

    def fill(self, g: Float[Tensor, "B QC"]) -> None:
        """Write the slots of all flows."""
        values = self.scale * g[:, self.source] + self.constant
        if len(self.outlets):
            density = g.view(len(g), len(VELOCITIES), -1)[:, :, self.cell].sum(dim=1)
            values[:, self.outlets] -= self.weight[self.outlets] * density
        g[:, self.slot] = values


def halo_copies(
    shape: tuple[int, int, int], axis: int, sides: Sides, stream: Sequence[float | Tensor]
) -> SlotCopies:
    """The slots at both sides of an axis; sides of earlier axes must be filled in the order z, y, x.

    Args:
        shape: cells (X, Y, Z).
        axis: 0, 1 or 2.
        sides: treatment of all sides.
        stream: populations of the free stream.
    """
    padded = tuple(size + 2 for size in shape)
    count = int(np.prod(padded))
    number = np.arange(count).reshape(padded)
    mirrored = [
        VELOCITIES.index(tuple(-v if k == axis else v for k, v in enumerate(c)))  # type: ignore[arg-type]
        for c in VELOCITIES
    ]
    parts: dict[str, list[ndarray]] = {
        name: [] for name in ("slot", "source", "scale", "constant", "weight", "cell")
    }
    for upper in (False, True):
        kind = sides[2 * axis + upper]
        look_up("side", kind, SIDES)
        layer, inner = (shape[axis] + 1, shape[axis]) if upper else (0, 1)
        opposite = 1 if upper else shape[axis]
        outside, adjacent = number.take(layer, axis).ravel(), number.take(inner, axis).ravel()
        for q, c in enumerate(VELOCITIES):
            if c[axis] != (-1 if upper else 1):
                continue
            if kind == "periodic":
                source = q * count + number.take(opposite, axis).ravel()
            else:
                source = (q if kind == "outlet" else mirrored[q]) * count + adjacent
            free = float(stream[q])
            scale = {"damped": 1 - DAMPING, "inlet": 0.0}.get(kind, 1.0)
            constant = {"damped": DAMPING * free, "inlet": free}.get(kind, 0.0)
            weight = WEIGHTS[q] if kind == "outlet" else 0.0
            for name, value in (("slot", q * count + outside), ("source", source), ("cell", adjacent)):
                parts[name].append(value)
            for name, number_ in (("scale", scale), ("constant", constant), ("weight", weight)):
                parts[name].append(np.full(len(outside), number_))
    joined = {name: torch.from_numpy(np.concatenate(part)) for name, part in parts.items()}
    outlets = joined["weight"].nonzero()[:, 0]
    return SlotCopies(**joined | {"cell": joined["cell"][outlets]}, outlets=outlets, cells=count)


@dataclass(frozen=True)
class Walls:
    """Surface of a body between the cells, halo cells included.

    Args:
        solid: cells inside of the body (X + 2, Y + 2, Z + 2).
        cell: position (L, 3) of the fluid cell of each link.
        direction: velocity q of the link, from the fluid into the solid.
        distance: distance of the wall from the fluid cell, as a fraction of the link.
        normal: normal (L, 3) of the wall, into the fluid.
        slip: share of the tangential velocity that the wall keeps, 0 (no slip) to 1.
    """

    solid: Bool[ndarray, "Xh Yh Zh"]
    cell: Int[ndarray, "L 3"]
    direction: Int[ndarray, "L"]
    distance: Float[ndarray, "L"]
    normal: Float[ndarray, "L 3"]
    slip: float = 0.0


def solid_links(solid: Bool[ndarray, "Xh Yh Zh"]) -> tuple[Int[ndarray, "L 3"], Int[ndarray, "L"]]:
    """Links from fluid cells, halo cells excepted, into solid cells: positions and velocities."""
    inner = tuple(slice(1, size - 1) for size in solid.shape)
    cells, directions = [], []
    for q, c in enumerate(VELOCITIES[1:], start=1):
        ahead = solid[tuple(slice(1 + k, size - 1 + k) for k, size in zip(c, solid.shape, strict=True))]
        found = np.argwhere(~solid[inner] & ahead) + 1
        cells.append(found)
        directions.append(np.full(len(found), q))
    return np.concatenate(cells), np.concatenate(directions)


def walls_from_distance(
    signed: Float[ndarray, "Xh Yh Zh"], normal: Float[ndarray, "Xh Yh Zh 3"], slip: float = 0.0
) -> Walls:
    """Walls where a signed distance, negative inside of the body, changes sign along a link.

    Args:
        signed: signed distance of each cell, halo cells included.
        normal: normal of the wall next to each fluid cell.
        slip: see `Walls`.
    """
    cell, direction = solid_links(signed < 0)
    here = signed[tuple(cell.T)]
    ahead = signed[tuple((cell + np.array(VELOCITIES)[direction]).T)]
    distance = np.clip(here / np.maximum(here - ahead, 1e-9), MIN_LINK, MAX_LINK)
    return Walls(signed < 0, cell, direction, distance, normal[tuple(cell.T)], slip)


@dataclass(frozen=True)
class WallLinks:
    """Links of the walls of all flows:  g[slot] = a g[first] + b g[second] − drift·u(cell).

    Interpolated bounce-back (Bouzidi et al., 2001). For a wall at the distance d of the link,
    d < 1/2:  g = 2d f_q(x) + (1 − 2d) f_q(x − c_q) − m,  or f_q(x) − m if x − c_q is solid;
    d ≥ 1/2:  g = (f_q(x) − m)/(2d) + (1 − 1/(2d)) f_p(x),  with p opposite to q and m = 6 W_q c_q·u_t
    for the velocity u_t of the wall, which is a share of the fluid's tangential velocity in x.

    Args:
        slot: index of the written population in the populations of all flows.
        first: index of f_q(x).
        second: index of the other population.
        a, b: their factors.
        drift: factors (L, 3) of the velocity in x.
        cell: index of the rest population in x.
        direction: q of each link.
        flow: flow of each link.
        cells: cells of a flow, halo included.
        solid: index of each solid cell in its flow.
        solid_flow: flow of each solid cell.
    """

    slot: Int[Tensor, "L"]
    first: Int[Tensor, "L"]
    second: Int[Tensor, "L"]
    a: Float[Tensor, "L"]
    b: Float[Tensor, "L"]
    drift: Float[Tensor, "L 3"]
    cell: Int[Tensor, "L"]
    direction: Int[Tensor, "L"]
    flow: Int[Tensor, "L"]
    cells: int
    solid: Int[Tensor, "S"]
    solid_flow: Int[Tensor, "S"]

    def reflected(self, g: Float[Tensor, "N"], velocities: Float[Tensor, "3 19"]) -> Float[Tensor, "L"]:
        """Populations that the walls return.

        Args:
            g: populations of all flows.
            velocities: components of the velocities of the lattice.
        """
        indices = self.cell[:, None] + self.cells * torch.arange(19, device=g.device)
        slip = (self.drift * (g[indices] @ velocities.T)).sum(dim=1)
        return self.a * g[self.first] + self.b * g[self.second] - slip


def join_walls(walls: Sequence[Walls], shape: tuple[int, int, int]) -> WallLinks:
    """Links of several flows, one body each, with indices into the populations of all flows."""
    padded = tuple(size + 2 for size in shape)
    cells = int(np.prod(padded))
    joined = [_link_arrays(body, padded, flow * 19 * cells) for flow, body in enumerate(walls)]
    parts = {name: torch.from_numpy(np.concatenate([one[name] for one in joined])) for name in joined[0]}
    counts = [len(body.direction) for body in walls]
    inside = [np.flatnonzero(body.solid) for body in walls]
    return WallLinks(
        **parts,
        flow=torch.from_numpy(np.repeat(np.arange(len(walls)), counts)),
        cells=cells,
        solid=torch.from_numpy(np.concatenate(inside)),
        solid_flow=torch.from_numpy(np.repeat(np.arange(len(walls)), [len(part) for part in inside])),
    )


def _link_arrays(walls: Walls, padded: tuple[int, ...], offset: int) -> dict[str, ndarray]:
    """Indices and factors of the links of one flow, whose populations begin at `offset`."""
    cells, q, d = int(np.prod(padded)), walls.direction, walls.distance
    velocity = np.array(VELOCITIES)
    c, p = velocity[q], np.array(OPPOSITE)[q]

    def number(position: ndarray) -> ndarray:
        return offset + np.ravel_multi_index(tuple(position.T), padded)

    behind = walls.cell - c
    blocked, near = walls.solid[tuple(behind.T)], d < 0.5
    first = number(walls.cell) + q * cells
    second = np.where(near, number(behind) + q * cells, number(walls.cell) + p * cells)
    second = np.where(near & blocked, first, second)
    a = np.where(near, np.where(blocked, 1.0, 2 * d), 1 / (2 * d))
    b = np.where(near, np.where(blocked, 0.0, 1 - 2 * d), 1 - 1 / (2 * d))
    along = (c * walls.normal).sum(axis=1, keepdims=True)
    drift = 6 * np.array(WEIGHTS)[q, None] * walls.slip * (c - along * walls.normal)
    drift *= np.where(near, 1.0, 1 / (2 * d))[:, None]
    return {
        "slot": number(walls.cell + c) + p * cells,
        "first": first,
        "second": second,
        "a": a,
        "b": b,
        "drift": drift,
        "cell": number(walls.cell),
        "direction": q,
    }
