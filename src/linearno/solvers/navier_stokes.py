"""Incompressible Navier–Stokes on the unit torus, in batches, and random samples of its benchmark.

Axes: B any batch axes, K points a side (x along the first, y along the second), M = K//2 + 1 Fourier modes of
the last axis, T frames. Results have the dtype and the device of the input and do not depend on the other
samples of a batch.
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

Unchecked = Float[Tensor, "..."]  # user input, checked with a one-line error
Field = Float[Tensor, "*B K K"]
Frames = Float[Tensor, "*B K K T"]
Spectrum = Float[Tensor, "B K M 2"]  # of a real field; real and imaginary parts in the last axis
Factor = Float[Tensor, "K M 2"]  # real factor of each mode, repeated for real and imaginary part
Step = Callable[[Spectrum], None]  # advances a spectrum by one time step in place

VISCOSITY = 1e-5
FRAMES = 20  # at t = 1, 2, …, 20
MAX_STORED_POINTS = 64  # points a side of the published files
MIN_POINTS = 8


@dataclass(frozen=True)
class Scheme:
    """Time-stepping scheme.

    Args:
        start: builds the step for a flow and dt.
        steps: default number of steps per unit of time on K points a side.
        description: text for the command line.
    """

    start: "Callable[[Flow, float], Step]"
    steps: Callable[[int], int]
    description: str


def solve_navier_stokes(
    w: Unchecked,
    f: Unchecked,
    *,
    viscosity: float,
    frames: int,
    interval: float = 1.0,
    scheme: str = "rk4",
    dt: float | None = None,
) -> Frames:
    """Solve  w_t + u·∇w = ν Δw + f,  ∇×u = w, ∇·u = 0  on the unit torus from vorticity `w` at t = 0.

    Pseudo-spectral: spectral accuracy in space, order 1 (`euler`) or 4 (`rk4`) in dt. On CUDA a step is
    captured as a graph.

    Args:
        w: initial vorticity (*B, K, K) at the points (i/K, j/K).
        f: force (K, K), the same for all samples.
        viscosity: ν.
        frames: T, number of returned frames.
        interval: time between frames; the first frame is at t = interval.
        scheme: key of `SCHEMES`.
        dt: time step, a divisor of `interval`; the scheme's default if None.
    """
    _require_fields(w, f)
    if not (viscosity >= 0 and frames >= 1 and interval > 0):
        got = f"{viscosity}, {frames} and {interval}"
        raise UserError(f"expected viscosity ≥ 0, frames ≥ 1 and an interval above zero, got {got}")
    chosen, size = find_scheme(scheme), w.shape[-1]
    steps = _count_steps(interval, dt) if dt is not None else max(1, round(interval * chosen.steps(size)))
    # transform samples one by one: batched transforms may round differently
    spectrum = torch.view_as_real(torch.stack([rfft2(sample) for sample in w.reshape(-1, size, size)]))
    step = chosen.start(build_flow(f, viscosity), interval / steps)  # kept alive for the captured graph
    advance = capture_step(lambda: step(spectrum), [spectrum])
    solution = []
    for frame in range(1, frames + 1):
        for _ in range(steps):
            advance()
        solution.append(irfft2(torch.view_as_complex(spectrum), s=(size, size)))
        _require_finite(solution[-1], frame * interval, interval / steps)
    return torch.stack(solution, dim=-1).reshape(*w.shape, frames)


def navier_stokes_samples(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str = "rk4"
) -> tuple[Float[ndarray, "B k k"], Float[ndarray, "B k k T"]]:
    """`a`, random vorticities at t = 0, and `u`, the vorticities at t = 1, …, 20, at `stored_points` a side.

    A sample for each generator, solved in float32. The fields are drawn on the CPU, so `a` is the same on
    every device.

    Args:
        rngs: generators of the B samples.
        resolution: K, grid points a side of the solver.
        device: device that solves.
        scheme: key of `SCHEMES`.
    """
    stride = resolution // stored_points(resolution)
    fields = draw_each(rngs, lambda rng: periodic_field(rng, resolution)).astype(np.float32)
    w = torch.from_numpy(fields).to(device)
    frames = solve_navier_stokes(
        w, benchmark_force(resolution).to(w), viscosity=VISCOSITY, frames=FRAMES, scheme=scheme
    )
    return fields[:, ::stride, ::stride], frames[:, ::stride, ::stride].cpu().numpy()


def stored_points(resolution: int) -> int:
    """Stored points a side: half of the solver's points, at most 64."""
    stored = min(MAX_STORED_POINTS, resolution // 2)
    if resolution < MIN_POINTS or resolution % stored:
        raise UserError(
            f"resolution {resolution} does not fit; Navier–Stokes needs an even number from {MIN_POINTS} to "
            f"{2 * MAX_STORED_POINTS}, or a multiple of {MAX_STORED_POINTS}"
        )
    return stored


def benchmark_force(size: int) -> Float[Tensor, "K K"]:
    """0.1 (sin 2π(x + y) + cos 2π(x + y))."""
    x = torch.arange(size, dtype=torch.float64) / size
    phase = 2 * pi * (x[:, None] + x)
    return 0.1 * (phase.sin() + phase.cos())


def find_scheme(name: str) -> Scheme:
    """Look up a scheme by name."""
    return look_up("scheme", name, SCHEMES)


def _require_fields(w: Unchecked, f: Unchecked) -> None:
    if w.dim() < 2 or w.shape[-1] != w.shape[-2] or w.shape[-1] < MIN_POINTS or f.shape != w.shape[-2:]:
        shapes = f"{tuple(w.shape)} and {tuple(f.shape)}"
        raise UserError(f"expected w and f on one K×K grid with K ≥ {MIN_POINTS}, got shapes {shapes}")
    if not (w.isfinite().all() and f.isfinite().all()):
        raise UserError("expected a finite vorticity and a finite force, got NaN or infinity")


def _count_steps(interval: float, dt: float) -> int:
    """Number of steps of dt in an interval."""
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
    """Spectral operators of  w_t + u·∇w = ν Δw + f  on a grid.

    Velocity: u = ∂ψ/∂y, v = −∂ψ/∂x, −Δψ = w. Advection: u·∇w = (∂x² − ∂y²) uv + ∂x∂y (v² − u²), which takes
    two transforms in each direction. Products keep modes up to two thirds of K/2 in each direction
    (dealiasing). First derivatives have no Nyquist mode.

    Args:
        size: K, points a side.
        curl: factors from ŵ to û and v̂.
        stress: factors from the transforms of uv and v² − u² to −u·∇w.
        decay: ν|k|².
        force: transform of f.
    """

    size: int
    curl: Complex[Tensor, "2 1 K M"]
    stress: Float[Tensor, "2 K M 2"]
    decay: Factor
    force: Factor

    def tendency(self, w: Spectrum) -> Spectrum:
        """Transform of −u·∇w + f."""
        u, v = irfft2(self.curl * torch.view_as_complex(w), s=(self.size, self.size))
        products = u.new_empty(2, *u.shape)
        torch.mul(u, v, out=products[0])
        torch.mul(v, v, out=products[1]).addcmul_(u, u, value=-1)
        uv, difference = torch.view_as_real(rfft2(products))
        return torch.addcmul(self.force, self.stress[0], uv).addcmul_(self.stress[1], difference)


def build_flow(f: Float[Tensor, "K K"], viscosity: float) -> Flow:
    """Spectral operators with the dtype and device of the force."""
    size = f.shape[-1]
    x = 2 * pi * fftfreq(size, 1 / size, dtype=torch.float64)[:, None]
    y = 2 * pi * rfftfreq(size, 1 / size, dtype=torch.float64)
    square = x**2 + y**2
    inverse = torch.where(square > 0, 1 / square, 0)
    smooth = (x.abs() <= 2 * pi * (2 / 3) * (size // 2)) & (y <= 2 * pi * (2 / 3) * (size // 2))
    curl = 1j * torch.stack([_zero_nyquist(y, size) * inverse, -_zero_nyquist(x, size) * inverse])
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


def _zero_nyquist(k: Float[Tensor, "..."], size: int) -> Float[Tensor, "..."]:
    return torch.where(k.abs() < pi * size, k, 0)


def euler(flow: Flow, dt: float) -> Step:
    """Explicit Euler for advection and force, Crank–Nicolson for diffusion: the published scheme, order 1.

    Computes the increment of a step: in float32 the rounding of a factor near 1 would accumulate over steps.
    """
    gain = dt / (1 + dt / 2 * flow.decay)

    def step(w: Spectrum) -> None:
        change = flow.tendency(w).addcmul_(flow.decay, w, value=-1)
        w.addcmul_(gain, change)

    return step


def rk4(flow: Flow, dt: float) -> Step:
    """Runge–Kutta of order 4 for advection and force, exact diffusion (integrating factor).

    Factors of w are stored minus 1 (`expm1`), for the same reason as in `euler`.
    """
    rate = -dt / 2 * flow.decay
    half, half_less, whole_less = rate.exp(), rate.expm1(), (2 * rate).expm1()
    second, fourth = dt / 2 * half, dt * half
    first_sum, middle_sum, last_sum = dt / 6 * half**2, dt / 3 * half, dt / 6

    def step(w: Spectrum) -> None:
        decayed = torch.addcmul(w, half_less, w)
        a = flow.tendency(w)
        b = flow.tendency(torch.addcmul(decayed, second, a))
        c = flow.tendency(decayed.add_(b, alpha=dt / 2))
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
