"""Lattice Boltzmann method for weakly compressible flow around bodies, many flows at once.

D3Q19 with a recursive regularised collision of third order, a Smagorinsky eddy viscosity, interpolated walls
with slip, and damped sides. Everything is in lattice units: cell size and time step are 1, the speed of sound
is 1/√3. Second order in the cell size under diffusive scaling (velocity ∝ cell size).

Axes: B flows, Q = 19 populations, X Y Z cells; stored populations have one halo cell on each side. A stored
population is f_q − W_q, which rounds better than f_q; r is the density minus 1.
"""

import math
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.errors import UserError
from linearno.solvers.captured_steps import capture_step
from linearno.solvers.lattice_walls import (
    VELOCITIES,
    WEIGHTS,
    Sides,
    SlotCopies,
    WallLinks,
    Walls,
    halo_copies,
    join_walls,
    on_device,
)

Populations = Float[Tensor, "B Q Xh Yh Zh"]  # with halo
Cells = Float[Tensor, "..."]
Backend = Literal["auto", "plain", "kernel"]

MAX_POPULATIONS = 1 << 31  # of all flows: kernels have 32-bit indices
MAX_SPEED = 0.3  # lattice units; the error of the compressible method grows with its square
MAX_SLAB_CELLS = 1 << 15  # cells that the plain step updates at once: its temporaries stay in the cache
GRAPH_STEPS = 10  # steps of a CUDA graph; even, because two buffers alternate
CLEAR_STEPS = 100  # steps between resets of populations inside of bodies, which no fluid cell reads
MIN_TAU = 0.5 + 1e-6

MOMENTS = torch.cat([torch.ones(1, 19), torch.tensor(VELOCITIES, dtype=torch.float32).T])  # r, u, v, w


def equilibrium(
    r: float | Cells, u: Sequence[float | Cells], velocities: Sequence[tuple[int, int, int]] = VELOCITIES
) -> list[float | Cells]:
    """W_q (r + 3 c·u + 4.5 (c·u)² − 1.5 u²) for each of `velocities`, with density 1 in the momentum."""
    square = sum(component * component for component in u)
    result = []
    for c in velocities:
        along = sum(direction * component for direction, component in zip(c, u, strict=True))
        weight = WEIGHTS[VELOCITIES.index(c)]
        result.append(weight * (r + 3 * along + 4.5 * along * along - 1.5 * square))
    return result


def collide(g: Sequence[Cells], tau0: Cells | float, smagorinsky: float) -> list[Cells]:
    """Populations after the collision of the populations `g`, in the order of `VELOCITIES`.

    The non-equilibrium stress P relaxes with the time τ = (τ₀ + √(τ₀² + 18 √2 C_s² |P'|))/2; its trace is
    dropped (bulk relaxation time 1). Third-order terms follow from second-order ones by recursion.

    Args:
        g: 19 populations of the same shape.
        tau0: relaxation time of the molecular and constant eddy viscosity ν: 1/2 + 3ν.
        smagorinsky: C_s.
    """
    even = [g[q] + g[q + 1] for q in range(1, 19, 2)]
    odd = [g[q] - g[q + 1] for q in range(1, 19, 2)]
    r = g[0] + sum(even[1:], even[0])
    u = odd[0] + odd[3] + odd[4] + odd[5] + odd[6]
    v = odd[1] + odd[3] - odd[4] + odd[7] + odd[8]
    w = odd[2] + odd[5] - odd[6] + odd[7] - odd[8]
    uu, vv, ww, third = u * u, v * v, w * w, r / 3
    pxx = even[0] + even[3] + even[4] + even[5] + even[6] - uu - third
    pyy = even[1] + even[3] + even[4] + even[7] + even[8] - vv - third
    pzz = even[2] + even[5] + even[6] + even[7] + even[8] - ww - third
    pxy, pxz, pyz = even[3] - even[4] - u * v, even[5] - even[6] - u * w, even[7] - even[8] - v * w
    trace = (pxx + pyy + pzz) / 3
    pxx, pyy, pzz = pxx - trace, pyy - trace, pzz - trace
    norm = pxx * pxx + pyy * pyy + pzz * pzz + 2 * (pxy * pxy + pxz * pxz + pyz * pyz)
    eddy = 18 * math.sqrt(2) * smagorinsky**2
    k = 1 - 2 / (tau0 + (tau0 * tau0 + eddy * norm.sqrt()).sqrt())
    kxx, kyy, kzz, kxy, kxz, kyz = k * pxx, k * pyy, k * pzz, k * pxy, k * pxz, k * pyz
    xxy, xyy = uu * v + 2 * u * kxy + v * kxx, vv * u + 2 * v * kxy + u * kyy
    xxz, xzz = uu * w + 2 * u * kxz + w * kxx, ww * u + 2 * w * kxz + u * kzz
    yyz, yzz = vv * w + 2 * v * kyz + w * kyy, ww * v + 2 * w * kyz + v * kzz
    base = r - 1.5 * (uu + vv + ww)
    axx, ayy, azz = 4.5 * (uu + kxx), 4.5 * (vv + kyy), 4.5 * (ww + kzz)
    axy, axz, ayz = 9 * (u * v + kxy), 9 * (u * w + kxz), 9 * (v * w + kyz)
    symmetric = [axx, ayy, azz]
    symmetric += [axx + ayy + axy, axx + ayy - axy, axx + azz + axz, axx + azz - axz]
    symmetric += [ayy + azz + ayz, ayy + azz - ayz]
    skew = [3 * u - 9 * (xyy + xzz), 3 * v - 9 * (xxy + yzz), 3 * w - 9 * (xxz + yyz)]
    skew += [3 * (u + v) + 9 * (xxy + xyy), 3 * (u - v) + 9 * (xyy - xxy)]
    skew += [3 * (u + w) + 9 * (xxz + xzz), 3 * (u - w) + 9 * (xzz - xxz)]
    skew += [3 * (v + w) + 9 * (yyz + yzz), 3 * (v - w) + 9 * (yzz - yyz)]
    result = [WEIGHTS[0] * base]
    for pair in range(9):
        weight, mean = WEIGHTS[2 * pair + 1], base + symmetric[pair]
        result += [weight * (mean + skew[pair]), weight * (mean - skew[pair])]
    return result


def stream_and_collide(
    source: Populations, target: Populations, tau0: Float[Tensor, "Z"], smagorinsky: float
) -> None:
    """One step of all cells: pull populations of neighbours in `source`, collide, write to `target`."""
    _, _, x, y, z = source.shape
    pulled = [
        source[:, q, 1 - a : x - 1 - a, 1 - b : y - 1 - b, 1 - c : z - 1 - c]
        for q, (a, b, c) in enumerate(VELOCITIES)
    ]
    for q, value in enumerate(collide(pulled, tau0, smagorinsky)):
        target[:, q, 1:-1, 1:-1, 1:-1] = value


class LatticeFlow:
    """Flows in a box of cells, around one body each.

    Args:
        shape: cells (X, Y, Z).
        sides: treatment of the lower and upper side of each axis; see `lattice_walls.SIDES`.
        walls: surfaces of the bodies, one per flow; None for flows without bodies.
        viscosity: constant kinematic viscosity ν, molecular and eddy.
        smagorinsky: Smagorinsky constant C_s; 0 for none.
        speed: speed of the free stream along z, at inlets and damped sides.
        initial: r, u, v, w (4, X, Y, Z) at the start; the free stream by default.
        sponge: cells at the end of z in which the viscosity grows, to absorb sound and vortices.
        device: device of the populations.
        dtype: type of the populations; kernels need float32.
        backend: fused Triton kernels, plain PyTorch, or kernels on CUDA only ("auto").
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        sides: Sides,
        *,
        walls: Sequence[Walls] | None = None,
        viscosity: float,
        smagorinsky: float = 0.0,
        speed: float = 0.0,
        initial: Float[Tensor, "4 X Y Z"] | None = None,
        sponge: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        backend: Backend = "auto",
    ):
        if not 0 <= speed <= MAX_SPEED:
            raise UserError(f"speed={speed} in lattice units: expected 0 to {MAX_SPEED}")
        self.shape, self.smagorinsky, self.steps_done = shape, smagorinsky, 0
        device, flows = torch.device(device), len(walls) if walls else 1
        padded = [size + 2 for size in shape]
        if 19 * flows * math.prod(padded) >= MAX_POPULATIONS:
            raise UserError(
                f"{flows} flows of {shape} cells have more than 2³¹ populations; solve fewer at once"
            )
        self.populations = torch.zeros(flows, 19, *padded, device=device, dtype=dtype)
        state = initial if initial is not None else _free_stream(shape, speed)
        start = torch.stack(equilibrium(state[0], list(state[1:])))  # type: ignore[arg-type]
        self.populations[..., 1:-1, 1:-1, 1:-1] = start.to(device, dtype)
        self._next = torch.zeros_like(self.populations)
        self._moments, self._nothing = MOMENTS.to(self.populations), self.populations.new_zeros(19)
        self.tau0 = _relaxation_times(shape[2], viscosity, sponge).to(device, dtype)
        stream = equilibrium(0.0, (0.0, 0.0, speed))
        self._halo: list[SlotCopies] = [
            on_device(halo_copies(shape, axis, sides, stream), device, dtype) for axis in (2, 1, 0)
        ]
        self.links: WallLinks | None = on_device(join_walls(walls, shape), device, dtype) if walls else None
        self._clear()
        self._step = self._make_step(backend)
        self._graph: Callable[[], None] | None = None

    def run(self, steps: int) -> None:
        """Advance all flows by `steps` time steps; on CUDA without synchronisation after the first call."""
        whole, rest = divmod(steps, GRAPH_STEPS) if self.populations.is_cuda else (0, steps)
        if whole and self._graph is None:
            self._graph = self._capture()
        for _ in range(whole):
            assert self._graph
            self._graph()
        for step in range(rest):
            self._advance()
            if (self.steps_done + step + 1) % CLEAR_STEPS == 0:
                self._clear()
        self.steps_done += steps

    def moments(self) -> Float[Tensor, "B 4 X Y Z"]:
        """r, u, v and w in each cell."""
        whole = self._moments @ self.populations.flatten(2)
        return whole.view(-1, 4, *self.populations.shape[2:])[..., 1:-1, 1:-1, 1:-1]

    def forces(self) -> Float[Tensor, "B 3"]:
        """Force of the fluid on each body, by exchange of momentum along the links, in lattice units."""
        if self.links is None:
            raise UserError("no force without a body: give walls")
        self._fill_halo(self.populations)
        links, flat = self.links, self.populations.view(-1)
        reflected = links.reflected(flat, self._moments[1:])
        momentum = self._moments[1:].T[links.direction] * (flat[links.first] + reflected)[:, None]
        return torch.zeros(len(self.populations), 3, device=flat.device, dtype=flat.dtype).index_add_(
            0, links.flow, momentum
        )

    def _make_step(self, backend: Backend) -> Callable[[Tensor, Tensor], None]:
        if backend == "auto":
            backend = "kernel" if self.populations.is_cuda and find_spec("triton") else "plain"
        if backend == "kernel":
            if not self.populations.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
                raise UserError(
                    "kernels on a CPU need TRITON_INTERPRET=1 in the environment; use backend=plain"
                )
            from linearno.solvers.lattice_kernel import fused_step

            return fused_step(self._halo, self.links, self.tau0, self.smagorinsky)
        return self._plain_step

    def _plain_step(self, source: Populations, target: Populations) -> None:
        self._fill_halo(source)
        if self.links is not None:
            flat = source.view(-1)
            flat[self.links.slot] = self.links.reflected(flat, self._moments[1:])
        _in_slabs(source, target, self.tau0, self.smagorinsky)

    def _fill_halo(self, g: Populations) -> None:
        for copies in self._halo:
            copies.fill(g.view(len(g), -1))

    def _advance(self) -> None:
        self._step(self.populations, self._next)
        self.populations, self._next = self._next, self.populations

    def _capture(self) -> Callable[[], None]:
        def steps() -> None:
            for _ in range(GRAPH_STEPS):
                self._advance()
            self._clear()

        return capture_step(steps, [self.populations, self._next])

    def _clear(self) -> None:
        if self.links is not None and len(self.links.solid):
            per_cell = self.populations.flatten(2).transpose(1, 2)
            per_cell.index_put_((self.links.solid_flow, self.links.solid), self._nothing)


def _in_slabs(source: Populations, target: Populations, tau0: Tensor, smagorinsky: float) -> None:
    """`stream_and_collide` in slabs along x."""
    flows, _, x, y, z = source.shape
    thick = max(1, MAX_SLAB_CELLS // (y * z))
    for flow in range(flows):
        for start in range(0, x - 2, thick):
            part = slice(start, min(start + thick, x - 2) + 2)
            one = slice(flow, flow + 1)
            stream_and_collide(source[one, :, part], target[one, :, part], tau0, smagorinsky)


def _free_stream(shape: tuple[int, int, int], speed: float) -> Float[Tensor, "4 X Y Z"]:
    state = torch.zeros(4, *shape, dtype=torch.float64)
    state[3] = speed
    return state


def _relaxation_times(cells: int, viscosity: float, sponge: int) -> Float[Tensor, "Z"]:
    """τ₀ along z, with a sponge of τ₀ + 0.3 a², a from 0 to 1, over the last cells."""
    depth = (torch.arange(cells, dtype=torch.float64) - (cells - sponge)).clamp(min=0) / max(sponge, 1)
    return max(0.5 + 3 * viscosity, MIN_TAU) + 0.3 * depth.square()
