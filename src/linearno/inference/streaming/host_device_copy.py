"""Chunks of rows from the host to the device and back; on CUDA beside the computation.

Each way across has two places of pinned and two of device memory, used in turn: while the device computes
with one chunk, the next is on its way in and the one before on its way out. Where all is one chunk, one place
will do. On a CPU nothing moves.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from linearno.inference.streaming.storage import Rows


class Ferry:
    """Carries chunks of at most `chunk` points. Rows that are on the device already stay where they are."""

    def __init__(self, device: torch.device, chunk: int):
        self.device, self.chunk = device, chunk
        self._lanes: dict[tuple[str, int], _Lane] = {}

    def load(
        self, sources: Sequence[Rows], chunks: Iterable[slice], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Each chunk of the sources on the device, in the type `dtype` or their own; the next one is sent
        before the caller gets the last. A chunk is the caller's until it asks for the next."""
        if not any(self._crosses(rows) for rows in sources):
            for n in chunks:
                yield n, [rows.read(n).to(dtype or rows.dtype) for rows in sources]
            return
        lanes = [self._lane("in", rows, dtype or rows.dtype) for rows in sources]

        def send(n: slice) -> tuple[slice, list[Tensor]]:
            return n, [lane.send(rows.read(n)) for lane, rows in zip(lanes, sources, strict=True)]

        ahead = map(send, chunks)
        here = next(ahead, None)
        while here is not None:
            coming = next(ahead, None)
            for lane in lanes:
                lane.arrive()
            yield here
            for lane in lanes:
                lane.release()
            here = coming

    def save(self, rows: Rows, n: slice, values: Tensor) -> None:
        """Write these values to the rows, at the latest when `finish` returns."""
        place = rows.place(n)
        if self._crosses(rows):
            self._lane("out", rows, rows.dtype).take(values, rows, n)
        elif place is None or place.data_ptr() != values.data_ptr():  # else they were made in their place
            rows.write(n, values)

    def _crosses(self, rows: Rows) -> bool:
        place = rows.place(slice(0, 1))
        return self.device.type == "cuda" and (place is None or place.device != self.device)

    def finish(self) -> None:
        """Wait until all that was saved is there."""
        for lane in self._lanes.values():
            lane.finish()

    def _lane(self, way: str, rows: Rows, dtype: torch.dtype) -> "_Lane":
        key = (way, id(rows))
        if key not in self._lanes:
            samples, points, channels = rows.shape
            places = 1 if points <= self.chunk else 2
            self._lanes[key] = _Lane(self.device, places, samples * min(self.chunk, points) * channels, dtype)
        return self._lanes[key]


class _Lane:
    """One way across, on a stream of its own. `first` is the place of the chunk that came first."""

    def __init__(self, device: torch.device, places: int, numbers: int, dtype: torch.dtype):
        self.pinned = [torch.empty(numbers, dtype=dtype, pin_memory=True) for _ in range(places)]
        self.there = [torch.empty(numbers, dtype=dtype, device=device) for _ in range(places)]
        self.copied = [torch.cuda.Event() for _ in range(places)]  # between host and device
        self.used = [torch.cuda.Event() for _ in range(places)]  # by the device's computation
        self.owed: list[Callable[[], None] | None] = [None] * places  # from pinned memory to where it belongs
        self.next, self.first = 0, 0
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))  # whoever had this memory is done with it

    def send(self, rows: Tensor) -> Tensor:
        """Start the way in, behind whatever uses that place now."""
        place = self._turn()
        self.copied[place].synchronize()  # then its pinned memory is free
        there, stage = _room(self.there[place], rows), rows
        if rows.is_cuda:
            self.stream.wait_stream(torch.cuda.current_stream(rows.device))
        elif not self._direct(rows):
            stage = _room(self.pinned[place], rows).copy_(rows)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[place])
            there.copy_(stage, non_blocking=True)
            self.copied[place].record(self.stream)
        return there

    def arrive(self) -> None:
        """Let the computation wait for the chunk that was sent first."""
        torch.cuda.current_stream(self.stream.device).wait_event(self.copied[self.first])

    def release(self) -> None:
        """The computation that was asked for so far is the last that reads that chunk."""
        self.used[self.first].record(torch.cuda.current_stream(self.stream.device))
        self.first = self._after(self.first)

    def take(self, values: Tensor, rows: Rows, n: slice) -> None:
        """Start the way out; the chunk before the last has then arrived."""
        place = self._turn()
        self._settle(place)
        there = _room(self.there[place], values).copy_(values)
        self.used[place].record(torch.cuda.current_stream(self.stream.device))
        target = rows.place(n)
        direct = target is not None and self._direct(target)
        stage = target if direct and target is not None else _room(self.pinned[place], values)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[place])
            stage.copy_(there, non_blocking=True)
            self.copied[place].record(self.stream)
        self.owed[place] = None if direct else partial(rows.write, n, stage)

    def finish(self) -> None:
        for place in dict.fromkeys((self.next, self._after(self.next))):  # the older one first
            self._settle(place)

    def _settle(self, place: int) -> None:
        self.copied[place].synchronize()
        owed, self.owed[place] = self.owed[place], None
        if owed is not None:
            owed()

    def _turn(self) -> int:
        place, self.next = self.next, self._after(self.next)
        return place

    def _after(self, place: int) -> int:
        return (place + 1) % len(self.there)

    def _direct(self, rows: Tensor) -> bool:
        """Whether a copy engine can read or write these rows by itself."""
        return rows.dtype == self.pinned[0].dtype and rows.is_contiguous() and rows.is_pinned()


def _room(flat: Tensor, like: Tensor) -> Tensor:
    return flat[: prod(like.shape)].view(like.shape)
