"""Files as MATLAB writes them, a way to break an array, and one to stop a generation."""

from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from linearno.data.generation import generate


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


def make_here(generator: Callable[..., None], root: Path, **plan: object) -> Path:
    """A finished set in `root`, made in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "process_map", lambda work, jobs, workers: (work(job) for job in jobs))
        generator(root, workers=1, tick=lambda n: None, **plan)
    return root


def publish(made: Path, names: Mapping[str, str], root: Path, order: Callable[..., list[np.ndarray]]) -> Path:
    """The arrays of a set under other names, in float64: train and test one after the other by `order`."""
    root.mkdir()
    for field, name in names.items():
        splits = (np.load(made / f"{split}_{field}.npy").astype(float) for split in ("train", "test"))
        np.save(root / name, np.concatenate(order(*splits)))
    return root


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
