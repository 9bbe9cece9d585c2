"""The same small work again and again: on CUDA recorded as a graph and replayed without the host.

Kernels on a few thousand points take less time than Python takes to start them, one after another.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linearno.ops.choice import chosen

MOST = 32  # recordings of a model; the one that was asked for longest ago goes first
SMALL = 2**24  # numbers of a chunk's features: with more of them the device is the slower one

Work = Callable[..., tuple[Tensor, ...]]


class Recording(NamedTuple):
    """A graph, where it reads, and what it gives: overwritten by the next replay."""

    graph: torch.cuda.CUDAGraph
    given: list[Tensor]
    found: tuple[Tensor, ...]


class Replays:
    """What was recorded of one model. Its graphs use the same memory one after another."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()  # None: computed once

    def __call__(self, key: Hashable, work: Work, *given: Tensor) -> tuple[Tensor, ...]:
        """`work(*given)`, computed the first time, recorded the second, replayed from then on.

        `key` and the shapes say what the work is. What comes back is valid until this work is done again.
        """
        key = (key, chosen(), *((part.shape, part.dtype) for part in given))
        if key not in self.recordings:
            self.recordings[key] = None
            while len(self.recordings) > MOST:
                self.recordings.popitem(last=False)
            return work(*given)
        self.recordings.move_to_end(key)
        recording = self.recordings[key]
        if recording is None:
            recording = self.recordings[key] = self._record(work, given)
        torch._foreach_copy_(recording.given, list(given))
        recording.graph.replay()
        return recording.found

    def _record(self, work: Work, given: tuple[Tensor, ...]) -> Recording:
        held = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in given]
        torch._foreach_copy_(held, list(given))
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            work(*held)  # libraries set themselves up for this stream
            graph.capture_begin(pool=self.pool)
            try:
                found = work(*held)
            finally:
                graph.capture_end()
        here.wait_stream(self.stream)
        return Recording(graph, held, found)


_OF_MODELS: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()


def replays_of(model: nn.Module, numbers: int) -> Replays | None:
    """Where work of `model` on chunks with so many numbers is recorded; None where that would not pay."""
    device = next(model.parameters()).device
    if device.type != "cuda" or numbers > SMALL:
        return None
    if model not in _OF_MODELS:
        _OF_MODELS[model] = Replays(device)
    return _OF_MODELS[model]
