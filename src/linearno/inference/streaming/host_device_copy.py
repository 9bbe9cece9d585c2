"""Copy chunks of rows between host and device; on CUDA overlapped with the computation.

Each direction has two slots of pinned and two of device memory, used in turn: while the device computes with
one chunk, the next one is copied in and the previous one out. On a CPU nothing is copied.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from linearno.inference.streaming.storage import Rows


class ChunkCopier:
    """Copies chunks of at most `chunk` points to and from `device`. Rows on the device are not copied."""

    def __init__(self, device: torch.device, chunk: int):
        self.device, self.chunk = device, chunk
        self._channels: dict[tuple[str, int], _CopyChannel] = {}

    def load(
        self, sources: Sequence[Rows], chunks: Iterable[slice], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield each chunk of the sources on the device, in `dtype` or their own type.

        The copy of the next chunk starts before a chunk is yielded. A chunk is valid until the next one is
        requested.
        """
        if not any(self._is_remote(rows) for rows in sources):
            for n in chunks:
                yield n, [rows.read(n).to(dtype or rows.dtype) for rows in sources]
            return
        channels = [self._channel("in", rows, dtype or rows.dtype) for rows in sources]

        def upload(n: slice) -> tuple[slice, list[Tensor]]:
            return n, [channel.upload(rows.read(n)) for channel, rows in zip(channels, sources, strict=True)]

        uploads = map(upload, chunks)
        current = next(uploads, None)
        while current is not None:
            following = next(uploads, None)
            for channel in channels:
                channel.wait_for_oldest()
            yield current
            for channel in channels:
                channel.release_oldest()
            current = following

    def save(self, rows: Rows, n: slice, values: Tensor) -> None:
        """Write values to the rows, at the latest when `finish` returns."""
        target = rows.view(n)
        if self._is_remote(rows):
            self._channel("out", rows, rows.dtype).download(values, rows, n)
        elif target is None or target.data_ptr() != values.data_ptr():  # else they were computed in place
            rows.write(n, values)

    def finish(self) -> None:
        """Wait for all copies."""
        for channel in self._channels.values():
            channel.finish()

    def _is_remote(self, rows: Rows) -> bool:
        target = rows.view(slice(0, 1))
        return self.device.type == "cuda" and (target is None or target.device != self.device)

    def _channel(self, direction: str, rows: Rows, dtype: torch.dtype) -> "_CopyChannel":
        key = (direction, id(rows))
        if key not in self._channels:
            samples, points, channels = rows.shape
            slots = 1 if points <= self.chunk else 2
            elements = samples * min(self.chunk, points) * channels
            self._channels[key] = _CopyChannel(self.device, slots, elements, dtype)
        return self._channels[key]


class _CopyChannel:
    """Copies in one direction, on a CUDA stream. Slots are used in turn; `oldest` is the first one in use."""

    def __init__(self, device: torch.device, slots: int, elements: int, dtype: torch.dtype):
        self.pinned = [torch.empty(elements, dtype=dtype, pin_memory=True) for _ in range(slots)]
        self.on_device = [torch.empty(elements, dtype=dtype, device=device) for _ in range(slots)]
        self.copied = [torch.cuda.Event() for _ in range(slots)]  # between host and device
        self.used = [torch.cuda.Event() for _ in range(slots)]  # by the computation
        self.pending: list[Callable[[], None] | None] = [
            None
        ] * slots  # writes from pinned memory to the rows
        self.next, self.oldest = 0, 0
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))  # the allocator may have reused memory

    def upload(self, rows: Tensor) -> Tensor:
        """Start to copy rows to the next slot, after its last use."""
        slot = self._next_slot()
        self.copied[slot].synchronize()  # its pinned memory is free
        target, source = _reshaped(self.on_device[slot], rows), rows
        if rows.is_cuda:
            self.stream.wait_stream(torch.cuda.current_stream(rows.device))
        elif not self._is_copyable(rows):
            source = _reshaped(self.pinned[slot], rows).copy_(rows)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[slot])
            target.copy_(source, non_blocking=True)
            self.copied[slot].record(self.stream)
        return target

    def wait_for_oldest(self) -> None:
        """Let the computation wait for the oldest upload."""
        torch.cuda.current_stream(self.stream.device).wait_event(self.copied[self.oldest])

    def release_oldest(self) -> None:
        """Free the slot of the oldest upload after the work that is queued now."""
        self.used[self.oldest].record(torch.cuda.current_stream(self.stream.device))
        self.oldest = self._after(self.oldest)

    def download(self, values: Tensor, rows: Rows, n: slice) -> None:
        """Start to copy values from the next slot to the rows, once its previous copy is written."""
        slot = self._next_slot()
        self._write_pending(slot)
        source = _reshaped(self.on_device[slot], values).copy_(values)
        self.used[slot].record(torch.cuda.current_stream(self.stream.device))
        target = rows.view(n)
        if target is not None and self._is_copyable(target):
            stage = target
        else:
            stage = _reshaped(self.pinned[slot], values)
            self.pending[slot] = partial(rows.write, n, stage)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[slot])
            stage.copy_(source, non_blocking=True)
            self.copied[slot].record(self.stream)

    def finish(self) -> None:
        for slot in dict.fromkeys((self.next, self._after(self.next))):  # the older one first
            self._write_pending(slot)

    def _write_pending(self, slot: int) -> None:
        self.copied[slot].synchronize()
        write, self.pending[slot] = self.pending[slot], None
        if write is not None:
            write()

    def _next_slot(self) -> int:
        slot, self.next = self.next, self._after(self.next)
        return slot

    def _after(self, slot: int) -> int:
        return (slot + 1) % len(self.on_device)

    def _is_copyable(self, rows: Tensor) -> bool:
        """Whether a copy engine can read or write these rows directly."""
        return rows.dtype == self.pinned[0].dtype and rows.is_contiguous() and rows.is_pinned()


def _reshaped(flat: Tensor, like: Tensor) -> Tensor:
    return flat[: prod(like.shape)].view(like.shape)
