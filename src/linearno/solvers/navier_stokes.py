"""Incompressible flow on the unit torus, many samples at once, and the recipe of its benchmark.

Axes: B any batch axes, K points a side (x along the first, y along the second), M = K//2 + 1 Fourier modes of
the last axis, T frames. Everything has the dtype and the device of its input; what comes out for a sample
does not depend on the others of its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi

import numpy as np
import torch
from jaxtyping import Complex, Float
from numpy import ndarray
from torch import Tensor
from torch.fft import fftfreq, irfft2, rfft2, rfftfreq

from linearno.core.errors import SampleError, UserError, look_up
from linearno.solvers.captured_steps import capture_step
from linearno.solvers.random_fields import draw_each, periodic_field

Given = Float[Tensor, "..."]  # from a user, who gets a line about a wrong shape
Field = Float[Tensor, "*B K K"]
Frames = Float[Tensor, "*B K K T"]
Spectrum = Float[Tensor, "B K M 2"]  # of a real field: real and imaginary parts in the last axis
Factor = Float[Tensor, "K M 2"]  # of a spectrum, a real number for each mode, given twice
Step = Callable[[Spectrum], None]  # moves a spectrum on in place

VISCOSITY = 1e-5
FRAMES = 20  # at t = 1, 2, …, 20
STORED = 64  # points a side at which the benchmark keeps its fields
SMALLEST = 8


@dataclass(frozen=True)
class Scheme:
    """A way to step in time, and how many steps a unit of time takes on K points a side unless told."""

    start: "Callable[[Flow, float], Step]"  # for a flow and dt
    steps: Callable[[int], int]
    words: str


def solve_navier_stokes(
    w: Given,
    f: Given,
    *,
    viscosity: float,
    frames: int,
    interval: float = 1.0,
    scheme: str = "rk4",
    dt: float | None = None,
) -> Frames:
    """Vorticity at t = interval, 2 interval, …, from `w` at t = 0:  w_t + u·∇w = ν Δw + f,  ∇×u = w, ∇·u = 0.

    `w` (*B, K, K) at the points (i/K, j/K), one `f` (K, K) for all samples. Pseudo-spectral: the error falls
    faster than any power of 1/K, and at order 1 (`euler`) or 4 (`rk4`) of dt. On CUDA a step is a recorded
    graph: the host only starts it.
    """
    _require_fields(w, f)
    if not (viscosity >= 0 and frames >= 1 and interval > 0):
        got = f"{viscosity}, {frames} and {interval}"
        raise UserError(f"expected viscosity ≥ 0, frames ≥ 1 and an interval above zero, got {got}")
    chosen, size = scheme_named(scheme), w.shape[-1]
    steps = _steps(interval, dt) if dt is not None else max(1, round(interval * chosen.steps(size)))
    # one at a time: a transform of many may round differently from a transform of one
    spectrum = torch.view_as_real(torch.stack([rfft2(one) for one in w.reshape(-1, size, size)]))
    step = chosen.start(flow_on(f, viscosity), interval / steps)  # lives as long as its recording
    advance = capture_step(lambda: step(spectrum), [spectrum])
    found = []
    for frame in range(1, frames + 1):
        for _ in range(steps):
            advance()
        found.append(irfft2(torch.view_as_complex(spectrum), s=(size, size)))
        _require_finite(found[-1], frame * interval, interval / steps)
    return torch.stack(found, dim=-1).reshape(*w.shape, frames)


def navier_stokes_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str = "rk4"
) -> tuple[Float[ndarray, "B k k"], Float[ndarray, "B k k T"]]:
    """`a`, a random vorticity, and `u`, what becomes of it at t = 1, …, 20, at `stored_points` a side.

    A sample for each generator, solved in float32. The fields are drawn on the CPU: `a` is the same on every
    device.
    """
    every = resolution // stored_points(resolution)
    fields = draw_each(rngs, lambda rng: periodic_field(rng, resolution)).astype(np.float32)
    w = torch.from_numpy(fields).to(device)
    frames = solve_navier_stokes(
        w, benchmark_force(resolution).to(w), viscosity=VISCOSITY, frames=FRAMES, scheme=scheme
    )
    return fields[:, ::every, ::every], frames[:, ::every, ::every].cpu().numpy()


def stored_points(resolution: int) -> int:
    """64, or half of the solver's points where that is fewer."""
    stored = min(STORED, resolution // 2)
    if resolution < SMALLEST or resolution % stored:
        raise UserError(
            f"resolution {resolution} does not fit; Navier–Stokes needs an even number from {SMALLEST} to "
            f"{2 * STORED}, or a multiple of {STORED}"
        )
    return stored


def benchmark_force(size: int) -> Float[Tensor, "K K"]:
    """0.1 (sin 2π(x + y) + cos 2π(x + y))."""
    x = torch.arange(size, dtype=torch.float64) / size
    phase = 2 * pi * (x[:, None] + x)
    return 0.1 * (phase.sin() + phase.cos())


def scheme_named(name: str) -> Scheme:
    return look_up("scheme", name, SCHEMES)


def _require_fields(w: Given, f: Given) -> None:
    if w.dim() < 2 or w.shape[-1] != w.shape[-2] or w.shape[-1] < SMALLEST or f.shape != w.shape[-2:]:
        shapes = f"{tuple(w.shape)} and {tuple(f.shape)}"
        raise UserError(f"expected w and f on one K×K grid with K ≥ {SMALLEST}, got shapes {shapes}")
    if not (w.isfinite().all() and f.isfinite().all()):
        raise UserError("expected a finite vorticity and a finite force, got NaN or infinity")


def _steps(interval: float, dt: float) -> int:
    """How many steps of dt an interval has."""
    steps = round(interval / dt) if dt > 0 else 0
    if steps < 1 or abs(steps * dt - interval) > 1e-9 * interval:
        raise UserError(f"dt={dt} does not fit: expected a number above zero that divides {interval:g}")
    return steps


def _require_finite(w: Field, time: float, dt: float) -> None:
    finite = w.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        first = int((~finite).nonzero()[0])
        raise SampleError(
            first, f"the vorticity is not finite at t = {time:g} with dt = {dt:.3g}; expected a smaller step"
        )


@dataclass(frozen=True)
class Flow:
    """w_t + u·∇w = ν Δw + f  on a grid: what turns ŵ into its tendency, all but for the diffusion.

    From ŵ to the velocity u = ∂ψ/∂y, v = −∂ψ/∂x, −Δψ = w, and by  u·∇w = (∂x² − ∂y²) uv + ∂x∂y (v² − u²)
    back: two transforms each way. Products keep modes up to two thirds of K/2 in each direction. First
    derivatives have no Nyquist mode, as in the real part of a complex transform.
    """

    size: int
    curl: Complex[Tensor, "2 1 K M"]  # ŵ → û, v̂
    stress: Float[Tensor, "2 K M 2"]  # transforms of uv and v² − u² → −u·∇w
    decay: Factor  # ν|k|²
    force: Factor

    def tendency(self, w: Spectrum) -> Spectrum:
        """−u·∇w + f."""
        u, v = irfft2(self.curl * torch.view_as_complex(w), s=(self.size, self.size))
        products = u.new_empty(2, *u.shape)
        torch.mul(u, v, out=products[0])
        torch.mul(v, v, out=products[1]).addcmul_(u, u, value=-1)
        uv, difference = torch.view_as_real(rfft2(products))
        return torch.addcmul(self.force, self.stress[0], uv).addcmul_(self.stress[1], difference)


def flow_on(f: Float[Tensor, "K K"], viscosity: float) -> Flow:
    """The factors of each mode for this force, in its dtype on its device."""
    size = f.shape[-1]
    x = 2 * pi * fftfreq(size, 1 / size, dtype=torch.float64)[:, None]
    y = 2 * pi * rfftfreq(size, 1 / size, dtype=torch.float64)
    square = x**2 + y**2
    inverse = torch.where(square > 0, 1 / square, 0)
    smooth = (x.abs() <= 2 * pi * (2 / 3) * (size // 2)) & (y <= 2 * pi * (2 / 3) * (size // 2))
    curl = 1j * torch.stack([_without_nyquist(y, size) * inverse, -_without_nyquist(x, size) * inverse])
    stress = torch.stack([x**2 - y**2, x * y]) * smooth

    def pairs(factor: Tensor) -> Tensor:
        return factor[..., None].repeat_interleave(2, dim=-1).to(f)

    force = torch.view_as_real(rfft2(f))
    return Flow(
        size,
        curl[:, None].to(f.device, f.dtype.to_complex()),
        pairs(stress),
        pairs(viscosity * square),
        force,
    )


def _without_nyquist(k: Float[Tensor, "..."], size: int) -> Float[Tensor, "..."]:
    return torch.where(k.abs() < pi * size, k, 0)


def euler(flow: Flow, dt: float) -> Step:
    """Explicit Euler for advection and force, Crank–Nicolson for diffusion: the published scheme, order 1.

    Written as what a step adds: in float32 a factor near one, rounded, would be the error of all steps alike.
    """
    gain = dt / (1 + dt / 2 * flow.decay)

    def step(w: Spectrum) -> None:
        change = flow.tendency(w).addcmul_(flow.decay, w, value=-1)
        w.addcmul_(gain, change)

    return step


def rk4(flow: Flow, dt: float) -> Step:
    """Runge–Kutta of order 4 for advection and force, with the diffusion exact (an integrating factor).

    Factors of w itself are given as what they exceed one by, for the reason that `euler` has.
    """
    rate = -dt / 2 * flow.decay
    half, half_less, whole_less = rate.exp(), rate.expm1(), (2 * rate).expm1()
    second, fourth = dt / 2 * half, dt * half
    first_sum, middle_sum, last_sum = dt / 6 * half**2, dt / 3 * half, dt / 6

    def step(w: Spectrum) -> None:
        kept = torch.addcmul(w, half_less, w)
        a = flow.tendency(w)
        b = flow.tendency(torch.addcmul(kept, second, a))
        c = flow.tendency(kept.add_(b, alpha=dt / 2))
        w.addcmul_(whole_less, w)
        d = flow.tendency(torch.addcmul(w, fourth, c))
        w.addcmul_(first_sum, a).addcmul_(middle_sum, b.add_(c)).add_(d, alpha=last_sum)

    return step


SCHEMES = {
    "rk4": Scheme(
        rk4, lambda size: size, "Runge-Kutta of order 4 with exact diffusion, dt = 1 / points a side"
    ),
    "euler": Scheme(euler, lambda size: 10_000, "explicit Euler with Crank-Nicolson diffusion, dt = 1e-4"),
}
