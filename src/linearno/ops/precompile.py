"""Kernels compiled side by side, before they are needed: a step has some thirty, and each takes most of a
second."""

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from linearno.ops.backend import kernels_work_on

MOST = 16  # threads
_ONE = threading.Lock()  # at a time


def compile_ahead(work: Callable[[], object], device: torch.device) -> None:
    """Compile and load all kernels that `work` launches, many at once; elsewhere than on CUDA do nothing.

    `work` is called, but its kernels do not run: what they should have written is what lay there before. So
    it may change nothing but by kernels, and nothing of what it gives is of use. Launches of other threads
    run as ever, but for backward passes: those of all threads share one.
    """
    if device.type != "cuda" or not kernels_work_on(device.type):
        return
    from triton.runtime.jit import JITFunction

    owner, made = threading.get_ident(), dict[Hashable, Future[None]]()

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != owner and torch._C._current_graph_task_id() == -1:
            return run(kernel, *args, grid=grid, warmup=warmup, **options)
        known = (kernel, *map(_kind, args), *options.items())
        if known not in made:
            made[known] = pool.submit(load, kernel, args, grid, options)
            if len(made) == 1:
                made[known].result()  # the first one sets the compiler up
        return None

    def load(kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> None:
        if (compiled := run(kernel, *args, grid=grid, warmup=True, **options)) is not None:
            compiled._init_handles()

    def settle() -> None:
        if device.index is not None:
            torch.cuda.set_device(device)

    with _ONE, ThreadPoolExecutor(min(MOST, os.cpu_count() or 1), initializer=settle) as pool:
        run, JITFunction.run = JITFunction.run, compile_only
        try:
            work()
        finally:
            JITFunction.run = run
    for future in made.values():
        future.result()  # raises what the compiler said


def _kind(value: Any) -> Hashable:
    """What a compiler may look at."""
    return (value.dtype, value.data_ptr() % 16) if isinstance(value, Tensor) else value
