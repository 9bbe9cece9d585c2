"""A step taken apart: how long the device works on each kind of kernel."""

from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Work

# The first pattern that a kernel's name contains decides.
PATTERNS = {
    "_norm": "norm",
    "_branch": "norm",
    "_mlp": "MLP",
    "_gelu": "MLP",
    "_gather": "attention",
    "_merge": "attention",
    "_scatter": "attention",
    "_mix": "attention",
    "_inverse": "attention",
    "_sum_parts": "sums of gradients",
    "_weight_back": "sums of gradients",
    "_sum_rows": "sums of gradients",
    "_column_partial_sums": "sums of gradients",
    "splitKreduce": "matrix products",
    "grad_implicit_gemm": "convolution",
    "fprop_implicit_gemm": "convolution",
    "wgrad": "convolution",
    "cudnn": "convolution",
    "_add_bias": "convolution",
    "_flip_taps": "convolution",
    "nvjet": "matrix products",
    "gemm": "matrix products",
    "cutlass": "matrix products",
    "_adam": "optimiser",
    "_square_sums": "optimiser",
    "CatArray": "optimiser",
}


def part_of(kernel: str) -> str:
    return next((part for pattern, part in PATTERNS.items() if pattern in kernel), "other")


def parts_us(work: Work, device: torch.device, calls: int = 5) -> dict[str, dict[str, float]]:
    """Microseconds of each part in one call, and how many kernels; nothing but on CUDA.

    Kernels on two streams overlap: the parts may add up to more than the call takes.
    """
    if device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            work()
        torch.cuda.synchronize(device)
    return by_part(
        ((event.key, event.self_device_time_total, event.count) for event in seen.key_averages()), calls
    )


def by_part(kernels: Iterable[tuple[str, float, int]], calls: int) -> dict[str, dict[str, float]]:
    """From (name, time, count) over `calls` calls to the parts of one, the longest first."""
    parts: dict[str, dict[str, float]] = {}
    for name, time, count in kernels:
        part = parts.setdefault(part_of(name), {"us": 0.0, "kernels": 0.0})
        part["us"] += time / calls
        part["kernels"] += count / calls
    return dict(sorted(parts.items(), key=lambda item: -item[1]["us"]))
