"""Time, memory and the ceilings of a device. One code for CPU and CUDA."""

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
    """Something to time, and the matrix precision that it runs under.

    A replayed graph keeps its memory from the capture on, so a replay tells nothing of it: `replay` is true,
    and `eager` does the same work without one where its memory is to be known.
    """

    work: Work
    precision: Precision = "fp32"
    replay: bool = False
    eager: Work | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure: calls before the clock starts, then `rounds` of `repeats` calls."""

    warmup: int = 3
    rounds: int = 5
    repeats: int = 4

    @classmethod
    def usual(cls, device: torch.device) -> "Effort":
        return cls(warmup=10, rounds=5, repeats=40) if device.type == "cuda" else cls()


@dataclass(frozen=True)
class Timing:
    """Milliseconds for one call: the median over all calls, and their quartiles."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, times: list[float]) -> "Timing":
        spread = statistics.quantiles(times * 2 if len(times) == 1 else times, n=4, method="inclusive")
        low, median, high = spread
        return cls(median, low, high, len(times))

    def facts(self) -> dict[str, Any]:
        return {"median": self.median, "quartiles": [self.low, self.high], "calls": self.calls}


@dataclass
class Results:
    """What each candidate took, by name; `absent` says why one could not run."""

    times: dict[str, Timing] = field(default_factory=dict)
    ready: dict[str, Candidate] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        times = {name: timing.facts() for name, timing in self.times.items()}
        return {"times_ms": times, "peak_mib": self.peak_mib, "absent": self.absent}


def compete(
    entries: Mapping[str, Callable[[], Candidate]],
    device: torch.device,
    effort: Effort | None = None,
    *,
    required: str | None = None,
) -> Results:
    """Build each candidate, then time them in turn, so that a drifting clock meets them all alike.

    A candidate that cannot be built or warmed up (no compiler, no capture, too little memory) is named with
    its reason, and the others go on; only the `required` one raises.
    """
    effort = effort or Effort.usual(device)
    results = Results()
    ready = results.ready
    for name, build in entries.items():
        try:
            candidate = build()
            results.peak_mib[name] = _warm_up(candidate, device, effort)
            ready[name] = candidate
        except Exception as error:  # a compiler or a driver may raise anything
            if name == required:
                raise
            results.absent[name] = _reason(error)
    samples: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(effort.rounds):
        for name, candidate in ready.items():
            set_matmul_precision(candidate.precision)
            samples[name] += times_ms(candidate.work, device, effort.repeats)
    set_matmul_precision("fp32")
    results.times = {name: Timing.of(times) for name, times in samples.items()}
    return results


def _warm_up(candidate: Candidate, device: torch.device, effort: Effort) -> float | None:
    set_matmul_precision(candidate.precision)
    for _ in range(effort.warmup):
        candidate.work()
    if candidate.eager is not None:
        candidate.eager()
        return peak_mib(candidate.eager, device)
    return None if candidate.replay else peak_mib(candidate.work, device)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def times_ms(work: Work, device: torch.device, repeats: int) -> list[float]:
    """The time of each of `repeats` calls: between CUDA events, or by the clock on a CPU."""
    if device.type != "cuda":
        return [_clocked_ms(work) for _ in range(repeats)]
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        for began, ended in marks:
            began.record()
            work()
            ended.record()
        torch.cuda.synchronize()
    return [began.elapsed_time(ended) for began, ended in marks]


def _clocked_ms(work: Work) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def peak_mib(work: Work, device: torch.device) -> float | None:
    """How far the memory in use on a CUDA device rises above its present level during `work`; None elsewhere.

    What was there before (weights, inputs, moments, other candidates) does not count.
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


def resident_mib(work: Work) -> float | None:
    """How far the resident set of this process rises during `work`, from where it lies when all free memory
    is given back; None where the system does not tell."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    except (AttributeError, OSError):
        work()
        return None
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def graphed(work: Work, device: torch.device, warmup: int = 3) -> Work:
    """`work` captured once as a CUDA graph: each call replays it, on the same memory."""
    return capture(work, stream=torch.cuda.Stream(device), warmup=warmup)


@dataclass(frozen=True)
class Ceilings:
    """What this device reaches: square products (TFLOP/s by precision), copies (GB/s read and written)."""

    tflops: dict[str, float]
    copy_gb: float
    size: int

    def facts(self) -> dict[str, Any]:
        return {"tflops": self.tflops, "copy_gb_per_s": self.copy_gb, "size": self.size}


def measure_ceilings(device: torch.device, size: int | None = None) -> Ceilings:
    """Measured here and now, so that a fraction of them compares like with like."""
    size = size or (8192 if device.type == "cuda" else 1024)
    precisions: tuple[Precision, ...] = ("bf16", "tf32", "fp32") if device.type == "cuda" else ("fp32",)
    tflops: dict[str, float] = {p: 2e-9 * size**3 / _product_ms(device, size, p) for p in precisions}
    source = torch.zeros(4 * size**2, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() * source.element_size()  # read once, written once
    copy_ms = _best_ms(lambda: _ignore(target.copy_(source)), device)
    return Ceilings(tflops, 1e-6 * copied / copy_ms, size)


def _product_ms(device: torch.device, size: int, precision: Precision) -> float:
    set_matmul_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    try:
        return _best_ms(lambda: _ignore(torch.matmul(left, right, out=out)), device)
    finally:
        set_matmul_precision("fp32")


def _best_ms(work: Work, device: torch.device) -> float:
    for _ in range(3):
        work()
    return statistics.median(times_ms(work, device, 10))


def _ignore(_: object) -> None:
    """Make a call that returns something into work."""
