"""Fused Triton kernels of the lattice Boltzmann step: sides, walls, then streaming and collision.

A step reads and writes every population once. The kernel of the cells has no masks except for the last block:
populations that enter from sides and walls have been written to the cells that they come from, and values
inside of bodies are computed like all others and read by nobody.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.core.errors import UserError
from linearno.solvers.lattice_walls import SlotCopies, WallLinks

BLOCK = 256  # cells of a program
LINK_BLOCK = 128


@triton.jit
def _fill_slots(
    g_ptr, slot_ptr, source_ptr, scale_ptr, constant_ptr, weight_ptr, cell_ptr, count, cells,
    OUTLET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g[slot] = scale g[source] + constant − weight Σ_q g_q(cell), for slots of one side of all flows."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < count
    g = g_ptr + tl.program_id(1).to(tl.int64) * (19 * cells)
    value = tl.load(scale_ptr + i, mask=valid) * tl.load(g + tl.load(source_ptr + i, mask=valid, other=0))
    value += tl.load(constant_ptr + i, mask=valid)
    if OUTLET:
        cell = tl.load(cell_ptr + i, mask=valid, other=0)
        density = tl.zeros([BLOCK], tl.float32)
        for q in tl.static_range(19):
            density += tl.load(g + q * cells + cell)
        value -= tl.load(weight_ptr + i, mask=valid) * density
    tl.store(g + tl.load(slot_ptr + i, mask=valid, other=0), value, mask=valid)


@triton.jit
def _reflect(
    g_ptr, slot_ptr, first_ptr, second_ptr, cell_ptr, a_ptr, b_ptr, drift_ptr, count, cells,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g[slot] = a g[first] + b g[second] − drift·u(cell) for the links of all walls."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < count
    x = g_ptr + tl.load(cell_ptr + i, mask=valid, other=0)
    u = tl.load(x + cells) - tl.load(x + 2 * cells)
    v = tl.load(x + 3 * cells) - tl.load(x + 4 * cells)
    w = tl.load(x + 5 * cells) - tl.load(x + 6 * cells)
    odd = tl.load(x + 7 * cells) - tl.load(x + 8 * cells)
    u, v = u + odd, v + odd
    odd = tl.load(x + 9 * cells) - tl.load(x + 10 * cells)
    u, v = u + odd, v - odd
    odd = tl.load(x + 11 * cells) - tl.load(x + 12 * cells)
    u, w = u + odd, w + odd
    odd = tl.load(x + 13 * cells) - tl.load(x + 14 * cells)
    u, w = u + odd, w - odd
    odd = tl.load(x + 15 * cells) - tl.load(x + 16 * cells)
    v, w = v + odd, w + odd
    odd = tl.load(x + 17 * cells) - tl.load(x + 18 * cells)
    v, w = v + odd, w - odd
    first = tl.load(g_ptr + tl.load(first_ptr + i, mask=valid, other=0))
    second = tl.load(g_ptr + tl.load(second_ptr + i, mask=valid, other=0))
    value = tl.load(a_ptr + i, mask=valid) * first + tl.load(b_ptr + i, mask=valid) * second
    value -= tl.load(drift_ptr + 3 * i, mask=valid) * u + tl.load(drift_ptr + 3 * i + 1, mask=valid) * v
    value -= tl.load(drift_ptr + 3 * i + 2, mask=valid) * w
    tl.store(g_ptr + tl.load(slot_ptr + i, mask=valid, other=0), value, mask=valid)


@triton.jit
def _pair(source, valid, offset, back, cells, Q: tl.constexpr):
    """Load the populations Q and Q + 1 of opposite velocities; return their sum and difference."""
    forward = tl.load(source + Q * cells + offset - back, mask=valid, other=0.0)
    backward = tl.load(source + (Q + 1) * cells + offset + back, mask=valid, other=0.0)
    return forward + backward, forward - backward


@triton.jit
def _store_pair(target, valid, offset, cells, weight, even, odd, Q: tl.constexpr):
    tl.store(target + Q * cells + offset, weight * (even + odd), mask=valid)
    tl.store(target + (Q + 1) * cells + offset, weight * (even - odd), mask=valid)


@triton.jit
def _stream_and_collide(
    source_ptr, target_ptr, tau0_ptr, eddy, z_cells, y_stride, x_stride, cells, count,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of BLOCK cells of a flow: see `lattice_boltzmann.collide`.

    Programs run over the cells of all rows (x, y) in the order of memory, halo cells of y and z included,
    whose results are never read before they are written again.
    """
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = n < count
    flow = tl.program_id(1).to(tl.int64) * (19 * cells)
    source, target = source_ptr + flow, target_ptr + flow
    offset = n + x_stride + y_stride + 1  # the first cell that is not in the halo
    z = (n + 1) % y_stride  # position in a row, halo cells included
    tau0 = tl.load(tau0_ptr + tl.minimum(tl.maximum(z - 1, 0), z_cells - 1), mask=valid, other=1.0)
    rest = tl.load(source + offset, mask=valid, other=0.0)
    ex, ox = _pair(source, valid, offset, x_stride, cells, 1)
    ey, oy = _pair(source, valid, offset, y_stride, cells, 3)
    ez, oz = _pair(source, valid, offset, 1, cells, 5)
    exy, oxy = _pair(source, valid, offset, x_stride + y_stride, cells, 7)
    fxy, pxy_ = _pair(source, valid, offset, x_stride - y_stride, cells, 9)
    exz, oxz = _pair(source, valid, offset, x_stride + 1, cells, 11)
    fxz, pxz_ = _pair(source, valid, offset, x_stride - 1, cells, 13)
    eyz, oyz = _pair(source, valid, offset, y_stride + 1, cells, 15)
    fyz, pyz_ = _pair(source, valid, offset, y_stride - 1, cells, 17)
    r = rest + ex + ey + ez + exy + fxy + exz + fxz + eyz + fyz
    u = ox + oxy + pxy_ + oxz + pxz_
    v = oy + oxy - pxy_ + oyz + pyz_
    w = oz + oxz - pxz_ + oyz - pyz_
    uu, vv, ww, third = u * u, v * v, w * w, r / 3
    pxx = ex + exy + fxy + exz + fxz - uu - third
    pyy = ey + exy + fxy + eyz + fyz - vv - third
    pzz = ez + exz + fxz + eyz + fyz - ww - third
    pxy, pxz, pyz = exy - fxy - u * v, exz - fxz - u * w, eyz - fyz - v * w
    trace = (pxx + pyy + pzz) / 3
    pxx, pyy, pzz = pxx - trace, pyy - trace, pzz - trace
    norm = pxx * pxx + pyy * pyy + pzz * pzz + 2 * (pxy * pxy + pxz * pxz + pyz * pyz)
    k = 1 - 2 / (tau0 + tl.sqrt(tau0 * tau0 + eddy * tl.sqrt(norm)))
    kxx, kyy, kzz, kxy, kxz, kyz = k * pxx, k * pyy, k * pzz, k * pxy, k * pxz, k * pyz
    xxy, xyy = uu * v + 2 * u * kxy + v * kxx, vv * u + 2 * v * kxy + u * kyy
    xxz, xzz = uu * w + 2 * u * kxz + w * kxx, ww * u + 2 * w * kxz + u * kzz
    yyz, yzz = vv * w + 2 * v * kyz + w * kyy, ww * v + 2 * w * kyz + v * kzz
    base = r - 1.5 * (uu + vv + ww)
    axx, ayy, azz = 4.5 * (uu + kxx), 4.5 * (vv + kyy), 4.5 * (ww + kzz)
    axy, axz, ayz = 9 * (u * v + kxy), 9 * (u * w + kxz), 9 * (v * w + kyz)
    tl.store(target + offset, base / 3, mask=valid)
    _store_pair(target, valid, offset, cells, 1 / 18, base + axx, 3 * u - 9 * (xyy + xzz), 1)
    _store_pair(target, valid, offset, cells, 1 / 18, base + ayy, 3 * v - 9 * (xxy + yzz), 3)
    _store_pair(target, valid, offset, cells, 1 / 18, base + azz, 3 * w - 9 * (xxz + yyz), 5)
    even = base + axx + ayy
    _store_pair(target, valid, offset, cells, 1 / 36, even + axy, 3 * (u + v) + 9 * (xxy + xyy), 7)
    _store_pair(target, valid, offset, cells, 1 / 36, even - axy, 3 * (u - v) + 9 * (xyy - xxy), 9)
    even = base + axx + azz
    _store_pair(target, valid, offset, cells, 1 / 36, even + axz, 3 * (u + w) + 9 * (xxz + xzz), 11)
    _store_pair(target, valid, offset, cells, 1 / 36, even - axz, 3 * (u - w) + 9 * (xzz - xxz), 13)
    even = base + ayy + azz
    _store_pair(target, valid, offset, cells, 1 / 36, even + ayz, 3 * (v + w) + 9 * (yyz + yzz), 15)
    _store_pair(target, valid, offset, cells, 1 / 36, even - ayz, 3 * (v - w) + 9 * (yzz - yyz), 17)


def fused_step(
    halo: Sequence[SlotCopies], links: WallLinks | None, tau0: Tensor, smagorinsky: float
) -> Callable[[Tensor, Tensor], None]:
    """A step (source, target) of all flows with fused kernels, for float32 populations (B, 19, X, Y, Z)."""
    if tau0.dtype != torch.float32:
        raise UserError(f"the kernels need float32, got {tau0.dtype}; use float32 or backend=plain")
    eddy = 18 * math.sqrt(2) * smagorinsky**2
    sides = [part for copies in halo for part in _side_arguments(copies)]
    walls = None if links is None else _wall_arguments(links)

    def step(source: Tensor, target: Tensor) -> None:
        flows, _, x, y, z = source.shape
        for side in sides:
            count = len(side.arrays[0])
            grid = (triton.cdiv(count, BLOCK), flows)
            _fill_slots[grid](source, *side.arrays, count, side.cells, side.outlet, BLOCK, num_warps=4)
        if walls is not None:
            assert links is not None
            blocks = (triton.cdiv(len(links.slot), LINK_BLOCK),)
            _reflect[blocks](source, *walls, len(links.slot), links.cells, LINK_BLOCK, num_warps=4)
        count = (x - 2) * y * z - 2 * z - 2  # from the first to the last cell that is not in the halo
        grid = (triton.cdiv(count, BLOCK), flows)
        _stream_and_collide[grid](
            source, target, tau0, eddy, z - 2, z, y * z, x * y * z, count, BLOCK, num_warps=4
        )  # fmt: skip

    return step


class _Side(NamedTuple):
    """Arguments of `_fill_slots`."""

    arrays: list[Tensor]
    cells: int
    outlet: bool


def _side_arguments(copies: SlotCopies) -> list[_Side]:
    """One launch for the slots of an outlet, and one for all others."""
    outlet = torch.zeros_like(copies.slot, dtype=torch.bool)
    outlet[copies.outlets] = True
    found = []
    for chosen, is_outlet in ((~outlet, False), (outlet, True)):
        slots = chosen.nonzero()[:, 0]
        if len(slots):
            whole = [copies.slot, copies.source, copies.scale, copies.constant, copies.weight]
            parts = [_compact(part[slots]) for part in whole]
            cell = _compact(copies.cell) if is_outlet else parts[0]
            found.append(_Side([*parts, cell], copies.cells, is_outlet))
    return found


def _wall_arguments(links: WallLinks) -> list[Tensor]:
    names = ("slot", "first", "second", "cell", "a", "b", "drift")
    return [_compact(getattr(links, name)) for name in names]


def _compact(part: Tensor) -> Tensor:
    """Contiguous, with 32-bit indices."""
    return part.to(torch.float32 if part.is_floating_point() else torch.int32).contiguous()
