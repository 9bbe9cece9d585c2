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
from linearno.solvers.navier_stokes import VISCOSITY, benchmark_force, scheme_named, solve_navier_stokes

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Candidate:
    """A scheme with its step on a grid in a precision."""

    scheme: str
    resolution: int
    dtype: str = "float32"
    steps: int | None = None  # per unit of time; the scheme's default if None

    @property
    def dt(self) -> float:
        return 1 / (self.steps or scheme_named(self.scheme).steps(self.resolution))


def resample(w: Float[Tensor, "B K K"], size: int) -> Float[Tensor, "B k k"]:
    """The modes of a field that both grids carry, on a grid of `size` points a side."""
    old = w.shape[-1]
    most = (min(old, size) - 1) // 2  # without the Nyquist mode
    spectrum = rfft2(w)
    new = spectrum.new_zeros(len(w), size, size // 2 + 1)
    new[:, : most + 1, : most + 1] = spectrum[:, : most + 1, : most + 1]
    new[:, -most:, : most + 1] = spectrum[:, -most:, : most + 1]
    return irfft2(new, s=(size, size)) * (size / old) ** 2


def solve(one: Candidate, w: Float[Tensor, "B K K"], frames: int) -> Float[Tensor, "B k k T"]:
    """Its frames of the benchmark's flow from `w`, in float64."""
    dtype = DTYPES[one.dtype]
    start = w if one.resolution == w.shape[-1] else resample(w, one.resolution)
    force = benchmark_force(one.resolution).to(w.device, dtype)
    found = solve_navier_stokes(
        start.to(dtype), force, viscosity=VISCOSITY, frames=frames, scheme=one.scheme, dt=one.dt
    )
    return found.double()


def compare_schemes(
    w: Float[Tensor, "B K K"], frames: int, truth: Candidate, others: Sequence[Candidate], *, points: int
) -> Iterator[dict[str, Any]]:
    """A row for each candidate: seconds, and relative L2 errors at each frame on `points` a side.

    `error` is against the truth and `from_first` against the first of the others: lists, a mean over the
    samples for each frame.
    """

    def stored(u: Float[Tensor, "B K K T"]) -> Float[Tensor, "B k k T"]:
        every = u.shape[1] // points
        return u[:, ::every, ::every]

    def errors(u: Tensor, reference: Tensor) -> list[float]:
        return [relative_l2(u[..., t], reference[..., t]).mean().item() for t in range(frames)]

    exact, first = stored(solve(truth, w, frames)), None
    for one in others:
        began = time.perf_counter()
        found = stored(solve(one, w, frames))
        seconds = time.perf_counter() - began
        first = found if first is None else first
        facts = asdict(one) | {"dt": one.dt, "seconds": seconds}
        yield facts | {"error": errors(found, exact), "from_first": errors(found, first)}
