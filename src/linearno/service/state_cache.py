"""Encoded samples kept for queries: least recently used ones are dropped above a memory limit."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from numpy import ndarray
from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    value: T
    bytes: int


class StateCache(Generic[T]):
    """Values by key within `limit` bytes; safe between threads.

    Args:
        limit: bytes of all values.
        on_drop: called with each value that is dropped.
    """

    def __init__(self, limit: int, on_drop: Callable[[T], None] = lambda value: None):
        self.limit, self._on_drop = limit, on_drop
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> T | None:
        """The value of a key, which becomes the most recently used; None if there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key].value

    def put(self, key: str, value: T, size: int) -> bool:
        """Keep a value of `size` bytes; False if it is larger than the whole cache."""
        if size > self.limit:
            self._on_drop(value)
            return False
        dropped = []
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                dropped.append(old)
            self._entries[key] = _Entry(value, size)
            self.bytes += size - sum(entry.bytes for entry in dropped)
            while self.bytes > self.limit:
                entry = self._entries.popitem(last=False)[1]
                self.bytes -= entry.bytes
                dropped.append(entry)
        for entry in dropped:
            self._on_drop(entry.value)
        return True

    def clear(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
            self.bytes = 0
        for entry in entries:
            self._on_drop(entry.value)


def bytes_of(value: Any) -> int:
    """Bytes of the arrays in nested sequences, mappings and data classes, without models."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, nn.Module | str):
        return 0
    if isinstance(value, Mapping):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, Sequence):
        return sum(map(bytes_of, value))
    if is_dataclass(value):
        return sum(bytes_of(getattr(value, field.name)) for field in fields(value))
    return 0
