"""Rows of points, in memory or on disk, read and written a chunk at a time.

Axes: B samples, N points, C channels, n points of a chunk.
"""

import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import IO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.errors import UserError

Array = Tensor | np.ndarray  # a tensor, an array, or a memory-mapped one
Chunk = Float[Tensor, "B n C"]


class Rows(ABC):
    """Rows (B, N, C) of one type."""

    shape: tuple[int, int, int]
    dtype: torch.dtype

    @abstractmethod
    def read(self, n: slice) -> Chunk:
        """The rows of these points: where they lie, or a copy."""

    @abstractmethod
    def write(self, n: slice, values: Chunk) -> None: ...

    @abstractmethod
    def place(self, n: slice) -> Chunk | None:
        """Where in memory these rows lie, if they do."""


class InMemory(Rows):
    """Those of a tensor."""

    def __init__(self, tensor: Float[Tensor, "B N C"]):
        self.tensor = tensor
        self.shape, self.dtype = (tensor.shape[0], tensor.shape[1], tensor.shape[2]), tensor.dtype

    def read(self, n: slice) -> Chunk:
        return self.tensor[:, n]

    def write(self, n: slice, values: Chunk) -> None:
        self.tensor[:, n] = values

    def place(self, n: slice) -> Chunk:
        return self.tensor[:, n]


class OnDisk(Rows):
    """In a temporary file that is gone when this is. Plain reads and writes: what is mapped into memory would
    count as memory."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype):
        self.shape, self.dtype = shape, dtype
        self.row = shape[2] * dtype.itemsize  # bytes
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="linearno-", buffering=0)  # noqa: SIM115 (kept)

    def read(self, n: slice) -> Chunk:
        samples, _, channels = self.shape
        rows = torch.empty(samples, n.stop - n.start, channels, dtype=self.dtype)
        for sample, part in enumerate(rows):
            self.file.seek(self._start(sample, n))
            _whole(self.file.readinto, part)  # type: ignore[attr-defined]  # a raw file's
        return rows

    def write(self, n: slice, values: Chunk) -> None:
        for sample, part in enumerate(values.to(self.dtype).contiguous()):
            self.file.seek(self._start(sample, n))
            try:
                _whole(self.file.write, part)
            except OSError as error:
                folder = tempfile.gettempdir()
                raise UserError(
                    f"cannot keep features on disk in {folder} ({error.strerror or error}); set TMPDIR to a "
                    "folder with more room, or give keep='recompute'"
                ) from error

    def place(self, n: slice) -> None:
        return None

    def _start(self, sample: int, n: slice) -> int:
        return (sample * self.shape[1] + n.start) * self.row


def _whole(move: Callable[[memoryview], int | None], part: Tensor) -> None:
    """All bytes of a tensor: a raw file may take several calls."""
    left = part.view(torch.uint8).numpy().data.cast("B")
    while len(left):
        moved = move(left)
        if not moved:
            raise OSError("the file ended too soon")
        left = left[moved:]


def as_rows(array: Array, name: str) -> InMemory:
    """Rows (B, N, C), or (N, C) of one sample, without a copy."""
    if isinstance(array, np.ndarray):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a file mapped for reading: nothing here writes to it
            array = torch.from_numpy(array)
    if array.dim() not in (2, 3):
        raise UserError(
            f"{name}: expected (points, channels) or (samples, points, channels), got {tuple(array.shape)}"
        )
    if not array.is_floating_point():
        raise UserError(f"{name}: expected floating-point numbers, got {array.dtype}")
    return InMemory(array if array.dim() == 3 else array[None])
