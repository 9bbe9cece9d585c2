"""Files as MATLAB writes them, and a way to break an array."""

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
