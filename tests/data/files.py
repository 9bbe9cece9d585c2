"""Files as MATLAB writes them, a way to break an array, and one to stop a generation."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from scipy.io import savemat


def write_v5(path: Path, fields: dict[str, np.ndarray]) -> None:
    savemat(path, fields, do_compression=True)


def write_v73(path: Path, fields: dict[str, np.ndarray]) -> None:
    """HDF5 behind a header of 512 bytes, axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in fields.items():
            file[name] = values.T


def edit(path: Path, index: tuple[int, ...], value: float) -> None:
    array = np.load(path)
    array[index] = value
    np.save(path, array)


class Stopped(Exception):
    pass


def stop_after(ticks: int) -> Callable[[int], None]:
    """A `tick` that stops the work at its call of that number."""
    calls: list[int] = []

    def tick(count: int) -> None:
        calls.append(count)
        if len(calls) == ticks:
            raise Stopped

    return tick
