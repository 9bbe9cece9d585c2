"""Device time of a step by kind of kernel."""

from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Work

# Part of a kernel's name → kind; the first match counts.
KIND_OF_PATTERN = {
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


def kernel_kind(kernel: str) -> str:
    return next((kind for pattern, kind in KIND_OF_PATTERN.items() if pattern in kernel), "other")


def kernel_times(work: Work, device: torch.device, calls: int = 5) -> dict[str, dict[str, float]]:
    """Microseconds and number of kernels per call, by kind; empty on a CPU.

    Kernels on two streams overlap, so the sum may exceed the duration of the call.
    """
    if device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            work()
        torch.cuda.synchronize(device)
    return sum_by_kind(
        ((event.key, event.self_device_time_total, event.count) for event in profiler.key_averages()), calls
    )


def sum_by_kind(kernels: Iterable[tuple[str, float, int]], calls: int) -> dict[str, dict[str, float]]:
    """Sum (name, microseconds, count) of kernels over `calls` calls to means per call, longest kind first."""
    kinds: dict[str, dict[str, float]] = {}
    for name, time, count in kernels:
        kind = kinds.setdefault(kernel_kind(name), {"us": 0.0, "kernels": 0.0})
        kind["us"] += time / calls
        kind["kernels"] += count / calls
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["us"]))
