"""Rows of points in memory or on disk, read and written in chunks.

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

Array = Tensor | np.ndarray  # which may be memory-mapped
Chunk = Float[Tensor, "B n C"]


class Rows(ABC):
    """Rows (B, N, C) of one type."""

    shape: tuple[int, int, int]
    dtype: torch.dtype

    @abstractmethod
    def read(self, n: slice) -> Chunk:
        """The rows of these points: a view, or a copy."""

    @abstractmethod
    def write(self, n: slice, values: Chunk) -> None: ...

    @abstractmethod
    def view(self, n: slice) -> Chunk | None:
        """A view of these rows; None if they are not in memory."""


class InMemory(Rows):
    """The rows of a tensor."""

    def __init__(self, tensor: Float[Tensor, "B N C"]):
        self.tensor = tensor
        self.shape, self.dtype = (tensor.shape[0], tensor.shape[1], tensor.shape[2]), tensor.dtype

    def read(self, n: slice) -> Chunk:
        return self.tensor[:, n]

    def write(self, n: slice, values: Chunk) -> None:
        self.tensor[:, n] = values

    def view(self, n: slice) -> Chunk:
        return self.tensor[:, n]


class OnDisk(Rows):
    """Rows in a temporary file, deleted with this object; a memory map would count as memory."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype):
        self.shape, self.dtype = shape, dtype
        self.row_bytes = shape[2] * dtype.itemsize
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="linearno-", buffering=0)  # noqa: SIM115

    def read(self, n: slice) -> Chunk:
        rows = torch.empty(self.shape[0], n.stop - n.start, self.shape[2], dtype=self.dtype)
        for sample, part in enumerate(rows):
            self._seek(sample, n)
            _transfer(self.file.readinto, part)  # type: ignore[attr-defined]  # of a raw file
        return rows

    def write(self, n: slice, values: Chunk) -> None:
        try:
            for sample, part in enumerate(values.to(self.dtype).contiguous()):
                self._seek(sample, n)
                _transfer(self.file.write, part)
        except OSError as error:
            raise UserError(
                f"cannot keep features on disk in {tempfile.gettempdir()} ({error.strerror or error}); set "
                "TMPDIR to a folder with more space, or give keep='recompute'"
            ) from error

    def view(self, n: slice) -> None:
        return None

    def _seek(self, sample: int, n: slice) -> None:
        self.file.seek((sample * self.shape[1] + n.start) * self.row_bytes)


def _transfer(move: Callable[[memoryview], int | None], part: Tensor) -> None:
    """Read or write all bytes of a tensor, for which a raw file may need several calls."""
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
            warnings.simplefilter("ignore")  # about read-only memory maps, which nothing here writes to
            array = torch.from_numpy(array)
    if array.dim() not in (2, 3):
        raise UserError(
            f"{name}: expected (points, channels) or (samples, points, channels), got {tuple(array.shape)}"
        )
    if not array.is_floating_point():
        raise UserError(f"{name}: expected floating-point numbers, got {array.dtype}")
    return InMemory(array if array.dim() == 3 else array[None])
