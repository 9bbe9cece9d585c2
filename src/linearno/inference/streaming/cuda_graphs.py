"""The same small work again and again: on CUDA recorded as a graph and replayed without the host.

Kernels on a few thousand points take less time than Python takes to start them, one after another.
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
from linearno.ops.backend import chosen

MOST = 32  # recordings of a model; the one that was asked for longest ago goes first
SMALL = 2**22  # numbers of a chunk's features: recordings keep what they give, within `planning.FIXED`

Work = Callable[..., tuple[Tensor, ...]]


class Recording(NamedTuple):
    """A captured work, and the tensors that it reads its arguments from."""

    replay: CapturedFunction[tuple[Tensor, ...]]
    given: list[Tensor]


class Replays:
    """What was recorded of one model: graphs that use the same memory, one after another."""

    def __init__(self, device: torch.device, weights: tuple[int, ...]):
        self.stream, self.lock = torch.cuda.Stream(device), Lock()
        self.done = torch.cuda.Event()  # the last replay, and that what it gave was taken
        self.recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()  # None: computed once
        self.weights = weights  # where they are
        self.places: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()

    def __call__(self, key: Hashable, work: Work, *given: Tensor) -> tuple[Tensor, ...]:
        """`work(*given)`, computed the first time, recorded the second, replayed from then on; `key` and the
        shapes say what the work is."""
        key = (key, chosen(), *((part.shape, part.dtype) for part in given))
        with self.lock:
            here = torch.cuda.current_stream(self.stream.device)
            here.wait_event(self.done)  # it may have been on another stream
            known = key in self.recordings
            recording = self.recordings.pop(key, None)
            if known and recording is None:
                recording = self._record(work, given)
            self.recordings[key] = recording
            while len(self.recordings) > MOST:
                self.recordings.popitem(last=False)
            if recording is not None:
                torch._foreach_copy_(recording.given, list(given))
                taken = tuple(part.clone() for part in recording.replay())
                self.done.record(here)
                return taken
        return work(*given)

    def _record(self, work: Work, given: tuple[Tensor, ...]) -> Recording:
        held = [self._place(number, part) for number, part in enumerate(given)]
        torch._foreach_copy_(held, list(given))
        pool = next((known.replay.pool for known in self.recordings.values() if known is not None), None)
        with _casts_of_its_own():
            replay = capture(
                lambda: work(*held),
                stream=self.stream,
                pool=pool,
                warmup=1,
                concurrent=True,
                keep_alive=held,  # not `work`, which holds the model and a mesh of any size
            )
        return Recording(replay, held)

    def _place(self, number: int, like: Tensor) -> Tensor:
        """Where the recordings read their part of that number, if it is like this one."""
        key = (number, like.shape, like.dtype)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return place


@contextmanager
def _casts_of_its_own() -> Iterator[None]:
    """Weights are cast within the recording: what autocast remembers is gone when its block ends."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


_OF_MODELS: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()


def replays_of(model: nn.Module, numbers: int) -> Replays | None:
    """Where work of `model` on chunks with so many numbers is recorded; None where that would not pay.

    Recordings read weights where they were: they are dropped when one of them has gone elsewhere.
    """
    device = next(model.parameters()).device
    if device.type != "cuda" or numbers > SMALL:
        return None
    weights = places_of(model)
    known = _OF_MODELS.get(model)
    if known is None or known.weights != weights:
        known = _OF_MODELS[model] = Replays(device, weights)
    return known


def places_of(module: nn.Module) -> tuple[int, ...]:
    """Where its parameters and buffers lie. `parameters()` finds the same, but takes longer than a short
    question."""
    own = (part for found in (module._parameters, module._buffers) for part in found.values())
    below = (place for child in module._modules.values() if child is not None for place in places_of(child))
    return (*(part.data_ptr() for part in own if part is not None), *below)
