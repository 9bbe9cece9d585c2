"""Capture a function as a CUDA graph, and keep alive what the graph reads.

A graph stores addresses, not tensors. If the captured function is dropped, its weights and inputs go back to
the allocator and its compiled kernels may be unloaded, while the graph still uses them.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

CHECK = (
    "LINEARNO_CHECK_CAPTURES"  # 1 in the environment: a replay fails if an input is dead (PyTorch 2.13 on)
)
_ONE_CAPTURE = RLock()  # PyTorch allows one capture at a time in a process


class CapturedFunction(Generic[Result]):
    """A function captured as a CUDA graph: each call replays it on the memory of the capture.

    `result` is what the function returned in the capture. A replay writes new values into the same tensors.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Result, keep_alive: object):
        self._graph, self._keep_alive = graph, keep_alive
        self.result = result

    def __call__(self) -> Result:
        self._graph.replay()
        return self.result

    @property
    def pool(self) -> Any:
        """The memory pool of the graph, for a capture that may reuse its memory. It exists as long as one of
        its graphs does."""
        return self._graph.pool()


def capture(
    function: Callable[[], Result],
    *,
    stream: torch.cuda.Stream,
    pool: Any = None,
    warmup: int = 0,
    concurrent: bool = False,
    keep_alive: object = None,
) -> CapturedFunction[Result]:
    """Call `function` on `stream` and capture its kernels, which do not run in the capture.

    Args:
        function: the work. Its closure must hold all tensors that it reads, or `keep_alive` must.
        stream: where the warm-up and the capture take place.
        pool: memory pool of a graph that is never replayed at the same time; a new pool by default.
        warmup: number of calls before the capture, in which libraries allocate their workspaces.
        concurrent: other threads use the device during the capture. The allocator's cache is then kept.
        keep_alive: what the graph keeps alive in place of `function`, where that would be a reference cycle
            or keep too much.
    """
    with _ONE_CAPTURE, torch.cuda.device(stream.device), _no_garbage_collection():
        here = torch.cuda.current_stream(stream.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(warmup):
                function()
        here.wait_stream(stream)
        if not concurrent:  # a capture cannot free cached memory by itself
            gc.collect()
            torch.cuda.synchronize(stream.device)
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            result = _record(graph, function, pool, "thread_local" if concurrent else "global")
    return CapturedFunction(graph, result, function if keep_alive is None else keep_alive)


def _record(graph: torch.cuda.CUDAGraph, function: Callable[[], Result], pool: Any, mode: str) -> Result:
    """Capture on the current stream. After an error the capture is ended, and the error is raised."""
    checks: dict[str, Any] = {"check_input_liveness": True} if os.environ.get(CHECK) == "1" else {}
    graph.capture_begin(pool=pool, capture_error_mode=mode, **checks)
    try:
        result = function()
    except BaseException:
        with suppress(RuntimeError):  # the capture was invalidated by the first error
            graph.capture_end()
        raise
    graph.capture_end()
    return result


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The collector may destroy another graph or unload a kernel, which a capture does not allow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
