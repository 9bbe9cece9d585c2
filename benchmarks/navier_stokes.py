"""Errors and cost of the schemes of the Navier–Stokes solver."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fft import irfft2, rfft2

from linearno.metrics.norms import relative_l2
from linearno.solvers.navier_stokes import VISCOSITY, benchmark_force, find_scheme, solve_navier_stokes

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Candidate:
    """Scheme, grid, dtype and time step of a solution.

    Args:
        scheme: name of the scheme.
        resolution: grid points K a side.
        dtype: "float32" or "float64".
        steps: time steps per unit of time; the scheme's default if None.
    """

    scheme: str
    resolution: int
    dtype: str = "float32"
    steps: int | None = None

    @property
    def dt(self) -> float:
        return 1 / (self.steps or find_scheme(self.scheme).steps(self.resolution))


def resample(w: Float[Tensor, "B K K"], size: int) -> Float[Tensor, "B k k"]:
    """Interpolate a field to `size` points a side: keep the Fourier modes that both grids resolve."""
    old = w.shape[-1]
    highest = (min(old, size) - 1) // 2  # below the Nyquist mode
    spectrum = rfft2(w)
    new = spectrum.new_zeros(len(w), size, size // 2 + 1)
    new[:, : highest + 1, : highest + 1] = spectrum[:, : highest + 1, : highest + 1]
    new[:, -highest:, : highest + 1] = spectrum[:, -highest:, : highest + 1]
    return irfft2(new, s=(size, size)) * (size / old) ** 2


def solve(candidate: Candidate, w: Float[Tensor, "B K K"], frames: int) -> Float[Tensor, "B k k T"]:
    """Frames of the benchmark's flow from vorticity `w`, converted to float64."""
    dtype, size = DTYPES[candidate.dtype], candidate.resolution
    start = w if size == w.shape[-1] else resample(w, size)
    force = benchmark_force(size).to(w.device, dtype)
    solution = solve_navier_stokes(
        start.to(dtype), force, viscosity=VISCOSITY, frames=frames, scheme=candidate.scheme, dt=candidate.dt
    )
    return solution.double()


def compare_schemes(
    w: Float[Tensor, "B K K"], frames: int, truth: Candidate, others: Sequence[Candidate], *, points: int
) -> Iterator[dict[str, Any]]:
    """A row per candidate: seconds, and relative L2 errors per frame, averaged over the samples.

    `error` is relative to the reference solution and `from_first` to the first candidate.

    Args:
        w: initial vorticities.
        frames: number of frames T.
        truth: reference solution.
        others: candidates to compare.
        points: points a side at which solutions are compared.
    """

    def at_points(u: Float[Tensor, "B K K T"]) -> Float[Tensor, "B k k T"]:
        stride = u.shape[1] // points
        return u[:, ::stride, ::stride]

    def errors(u: Tensor, reference: Tensor) -> list[float]:
        return [relative_l2(u[..., t], reference[..., t]).mean().item() for t in range(frames)]

    reference, first = at_points(solve(truth, w, frames)), None
    for candidate in others:
        start = time.perf_counter()
        solution = at_points(solve(candidate, w, frames))
        seconds = time.perf_counter() - start
        first = solution if first is None else first
        row = asdict(candidate) | {"dt": candidate.dt, "seconds": seconds}
        yield row | {"error": errors(solution, reference), "from_first": errors(solution, first)}
