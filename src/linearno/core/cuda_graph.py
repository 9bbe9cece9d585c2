"""Capture a function as a CUDA graph, and keep alive the tensors that the graph reads.

A graph stores addresses, not tensors. If the captured function is garbage collected, its weights and inputs
return to the allocator and its compiled kernels may be unloaded, while the graph still uses them.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

# Environment variable; if 1, a replay fails when an input has been freed (PyTorch 2.13 and later).
CHECK_VARIABLE = "LINEARNO_CHECK_CAPTURES"
_CAPTURE_LOCK = RLock()  # PyTorch allows one capture at a time in a process


class CapturedFunction(Generic[Result]):
    """A function captured as a CUDA graph: each call replays it on the memory of the capture.

    Args:
        graph: the captured graph.
        result: return value of the function in the capture; a replay writes new values into its tensors.
        keep_alive: object that holds all tensors which the graph reads.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Result, keep_alive: object):
        self._graph, self._keep_alive = graph, keep_alive
        self.result = result

    def __call__(self) -> Result:
        self._graph.replay()
        return self.result

    @property
    def pool(self) -> Any:
        """Memory pool of the graph, for a capture that may reuse its memory; exists while one of its graphs
        does."""
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
    """Call `function` on `stream` and capture its kernels, which do not run during the capture.

    Args:
        function: function to capture. Its closure, or `keep_alive`, must hold all tensors that it reads.
        stream: stream of the warm-up and the capture.
        pool: memory pool of a graph that is never replayed at the same time; a new pool by default.
        warmup: number of calls before the capture, in which libraries allocate their workspaces.
        concurrent: whether other threads use the device during the capture; the allocator's cache is then
            kept.
        keep_alive: object that the graph keeps alive instead of `function`, to avoid a reference cycle.
    """
    with _CAPTURE_LOCK, torch.cuda.device(stream.device), _no_garbage_collection():
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(warmup):
                function()
        current.wait_stream(stream)
        if not concurrent:  # a capture cannot free cached memory by itself
            gc.collect()
            torch.cuda.synchronize(stream.device)
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            result = _capture_into(graph, function, pool, "thread_local" if concurrent else "global")
    return CapturedFunction(graph, result, function if keep_alive is None else keep_alive)


def _capture_into(
    graph: torch.cuda.CUDAGraph, function: Callable[[], Result], pool: Any, mode: str
) -> Result:
    """Capture on the current stream; end the capture also if `function` raises."""
    options: dict[str, Any] = {"check_input_liveness": True} if os.environ.get(CHECK_VARIABLE) == "1" else {}
    graph.capture_begin(pool=pool, capture_error_mode=mode, **options)
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
    """Disable the garbage collector, which may destroy a graph or unload a kernel during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
