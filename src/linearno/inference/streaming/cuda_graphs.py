"""Capture repeated small work as CUDA graphs, and replay it without the host.

Kernels on a few thousand points take less time than Python takes to launch them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

from linearno.core.cuda_graph import CapturedFunction, capture
from linearno.ops.backend import active_backend

MAX_GRAPHS = 32  # per model; the least recently used one is dropped
MAX_GRAPH_ELEMENTS = 2**22  # of a chunk's features: graphs keep their results in memory

Work = Callable[..., tuple[Tensor, ...]]


class CapturedWork(NamedTuple):
    """A captured work, and the tensors that it reads its arguments from."""

    replay: CapturedFunction[tuple[Tensor, ...]]
    arguments: list[Tensor]


class GraphCache:
    """The CUDA graphs of one model. They share memory, so one of them runs at a time.

    Args:
        device: where they run.
        addresses: of the weights that they read.
    """

    def __init__(self, device: torch.device, addresses: tuple[int, ...]):
        self.stream, self.lock = torch.cuda.Stream(device), Lock()
        self.done = torch.cuda.Event()  # results of the last replay were copied
        self.graphs: OrderedDict[Hashable, CapturedWork | None] = OrderedDict()  # None: computed once
        self.addresses = addresses
        self.buffers: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()

    def __call__(self, key: Hashable, work: Work, *arguments: Tensor) -> tuple[Tensor, ...]:
        """`work(*arguments)`: computed the first time, captured the second, replayed from then on.

        Args:
            key: identifies the work, together with the shapes and types of the arguments.
            work: depends on nothing but its arguments, the weights and `key`.
            arguments: tensors on the device.
        """
        key = (key, active_backend(), *((part.shape, part.dtype) for part in arguments))
        with self.lock:
            current = torch.cuda.current_stream(self.stream.device)
            current.wait_event(self.done)  # which may be of another stream
            known = key in self.graphs
            captured = self.graphs.pop(key, None)
            if known and captured is None:
                captured = self._capture(work, arguments)
            self.graphs[key] = captured
            while len(self.graphs) > MAX_GRAPHS:
                self.graphs.popitem(last=False)
            if captured is not None:
                torch._foreach_copy_(captured.arguments, list(arguments))
                results = tuple(part.clone() for part in captured.replay())
                self.done.record(current)
                return results
        return work(*arguments)

    def _capture(self, work: Work, arguments: tuple[Tensor, ...]) -> CapturedWork:
        buffers = [self._buffer(number, part) for number, part in enumerate(arguments)]
        torch._foreach_copy_(buffers, list(arguments))
        pool = next((graph.replay.pool for graph in self.graphs.values() if graph is not None), None)
        with _without_autocast_cache():
            replay = capture(
                lambda: work(*buffers),
                stream=self.stream,
                pool=pool,
                warmup=1,
                concurrent=True,
                keep_alive=buffers,  # not `work`, which holds the model and a mesh of any size
            )
        return CapturedWork(replay, buffers)

    def _buffer(self, number: int, like: Tensor) -> Tensor:
        """The tensor from which all graphs read argument `number`, if it has this shape and type."""
        key = (number, like.shape, like.dtype)
        buffer = self.buffers.get(key)
        if buffer is None:
            buffer = torch.empty_like(like, memory_format=torch.contiguous_format)
            self.buffers[key] = buffer
        return buffer


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Cast weights within the capture: autocast frees those of its cache."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


_GRAPH_CACHES: WeakKeyDictionary[nn.Module, GraphCache] = WeakKeyDictionary()


def graph_cache_of(model: nn.Module, elements: int) -> GraphCache | None:
    """CUDA graphs of `model` for chunks with `elements` elements; None if graphs do not pay.

    They are dropped when a weight has moved in memory.
    """
    device = next(model.parameters()).device
    if device.type != "cuda" or elements > MAX_GRAPH_ELEMENTS:
        return None
    addresses = addresses_of(model)
    cache = _GRAPH_CACHES.get(model)
    if cache is None or cache.addresses != addresses:
        cache = _GRAPH_CACHES[model] = GraphCache(device, addresses)
    return cache


def addresses_of(module: nn.Module) -> tuple[int, ...]:
    """Addresses of its parameters and buffers. `parameters()` takes longer than a short query."""
    own = (part for found in (module._parameters, module._buffers) for part in found.values())
    below = (each for child in module._modules.values() if child is not None for each in addresses_of(child))
    return (*(part.data_ptr() for part in own if part is not None), *below)
