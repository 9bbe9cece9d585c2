"""Measure time, memory and the peak arithmetic and copy rates of a CPU or CUDA device."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from linearno.core.cuda_graph import capture
from linearno.core.device import Precision, set_matmul_precision

Work = Callable[[], None]


@dataclass(frozen=True)
class Candidate:
    """A function to time.

    Args:
        work: function to call.
        precision: matrix precision during the call.
        replay: `work` replays a CUDA graph, so its peak memory cannot be measured.
        eager: the same work without a graph, to measure its peak memory.
    """

    work: Work
    precision: Precision = "fp32"
    replay: bool = False
    eager: Work | None = None


@dataclass(frozen=True)
class TimingSettings:
    """Number of calls: `warmup` untimed ones, then `rounds` of `repeats` timed ones."""

    warmup: int = 3
    rounds: int = 5
    repeats: int = 4

    @classmethod
    def default(cls, device: torch.device) -> "TimingSettings":
        return cls(warmup=10, rounds=5, repeats=40) if device.type == "cuda" else cls()


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median and quartiles over all calls."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, times: list[float]) -> "Timing":
        sample = times * 2 if len(times) == 1 else times
        low, median, high = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, low, high, len(times))

    def as_dict(self) -> dict[str, Any]:
        return {"median": self.median, "quartiles": [self.low, self.high], "calls": self.calls}


@dataclass
class Results:
    """Times and peak memory by candidate name.

    Args:
        times: times of each candidate.
        candidates: candidates that ran.
        peak_mib: peak memory in MiB; None if unknown.
        absent: reason why a candidate could not run.
    """

    times: dict[str, Timing] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        times = {name: timing.as_dict() for name, timing in self.times.items()}
        return {"times_ms": times, "peak_mib": self.peak_mib, "absent": self.absent}


def time_candidates(
    builders: Mapping[str, Callable[[], Candidate]],
    device: torch.device,
    settings: TimingSettings | None = None,
    *,
    required: str | None = None,
) -> Results:
    """Build all candidates, then time them in alternating rounds, so that clock drift affects all equally.

    Args:
        builders: function that builds each candidate, by name. If it or the warm-up fails (no compiler, no
            capture, out of memory), the error is noted in `Results.absent`.
        device: device that computes.
        settings: number of calls; chosen for the device by default.
        required: name of the candidate whose errors are raised.
    """
    settings = settings or TimingSettings.default(device)
    results = Results()
    candidates = results.candidates
    for name, build in builders.items():
        try:
            candidate = build()
            results.peak_mib[name] = _warm_up(candidate, device, settings)
            candidates[name] = candidate
        except Exception as error:  # a compiler or a driver may raise anything
            if name == required:
                raise
            results.absent[name] = _first_line(error)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(settings.rounds):
        for name, candidate in candidates.items():
            set_matmul_precision(candidate.precision)
            samples[name] += times_ms(candidate.work, device, settings.repeats)
    set_matmul_precision("fp32")
    results.times = {name: Timing.of(times) for name, times in samples.items()}
    return results


def _warm_up(candidate: Candidate, device: torch.device, settings: TimingSettings) -> float | None:
    """Run the warm-up calls and return the peak memory in MiB."""
    set_matmul_precision(candidate.precision)
    for _ in range(settings.warmup):
        candidate.work()
    if candidate.eager is not None:
        candidate.eager()
        return peak_mib(candidate.eager, device)
    return None if candidate.replay else peak_mib(candidate.work, device)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def times_ms(work: Work, device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls, from CUDA events or the CPU clock."""
    if device.type != "cuda":
        return [_cpu_ms(work) for _ in range(repeats)]
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        for start, end in events:
            start.record()
            work()
            end.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def _cpu_ms(work: Work) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def peak_mib(work: Work, device: torch.device) -> float | None:
    """Peak CUDA memory that `work` allocates above the current allocation, in MiB; None on a CPU.

    Existing tensors (weights, inputs, moments, other candidates) do not count.
    """
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def peak_resident_mib(work: Work) -> float | None:
    """Peak growth of this process's resident set during `work`, in MiB; None if the system reports none."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    except (AttributeError, OSError):
        work()
        return None
    before = _process_status_mib("VmRSS")
    work()
    return _process_status_mib("VmHWM") - before


def _process_status_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def capture_graph(work: Work, device: torch.device, warmup: int = 3) -> Work:
    """Capture `work` as a CUDA graph; each call of the result replays it."""
    return capture(work, stream=torch.cuda.Stream(device), warmup=warmup)


@dataclass(frozen=True)
class Ceilings:
    """Measured peak rates of a device.

    Args:
        tflops: TFLOP/s of square matrix products by precision.
        copy_gb: GB/s of copies, read plus written.
        size: side of the matrices.
    """

    tflops: dict[str, float]
    copy_gb: float
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {"tflops": self.tflops, "copy_gb_per_s": self.copy_gb, "size": self.size}


def measure_ceilings(device: torch.device, size: int | None = None) -> Ceilings:
    """Measure peak rates in this process, so that fractions of them refer to the same device state."""
    size = size or (8192 if device.type == "cuda" else 1024)
    precisions: tuple[Precision, ...] = ("bf16", "tf32", "fp32") if device.type == "cuda" else ("fp32",)
    tflops: dict[str, float] = {p: 2e-9 * size**3 / _product_ms(device, size, p) for p in precisions}
    source = torch.zeros(4 * size**2, device=device)
    target = torch.empty_like(source)
    bytes_copied = 2 * source.numel() * source.element_size()  # read once, written once
    copy_ms = _median_ms(lambda: _discard(target.copy_(source)), device)
    return Ceilings(tflops, 1e-6 * bytes_copied / copy_ms, size)


def _product_ms(device: torch.device, size: int, precision: Precision) -> float:
    set_matmul_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    try:
        return _median_ms(lambda: _discard(torch.matmul(left, right, out=out)), device)
    finally:
        set_matmul_precision("fp32")


def _median_ms(work: Work, device: torch.device) -> float:
    for _ in range(3):
        work()
    return statistics.median(times_ms(work, device, 10))


def _discard(_: object) -> None:
    """Discard the result of a call, so that a lambda is `Work`."""
