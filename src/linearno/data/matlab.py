"""MATLAB files of both kinds: v5 (scipy) and v7.3, which is HDF5 with the axes reversed."""

from pathlib import Path

import h5py
import numpy as np
from numpy import ndarray
from scipy.io import loadmat, whosmat

from linearno.core.errors import UserError, did_you_mean, require

NUMBERS = "fiub"  # numpy kinds that become float32


def mat_shape(path: Path, name: str, *, how: str) -> tuple[int, ...]:
    """The shape that MATLAB shows for a variable, from the headers alone."""
    shapes = mat_shapes(path, how=how)
    if name not in shapes:
        near = did_you_mean(name, shapes)
        raise UserError(f"{path} holds no variable {name!r} ({near}): another file, or truncated; {how}")
    return shapes[name]


def read_mat(path: Path, name: str, index: tuple[slice, ...], *, how: str) -> ndarray:
    """The part `index` of a variable, axes in MATLAB's order, as float32."""
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                values = file[name][index[::-1]].T
        else:
            values = loadmat(path, variable_names=[name])[name][index]
    except MemoryError:
        raise
    except Exception as error:  # the readers raise anything, from zlib.error to IndexError, on broken bytes
        raise UserError(f"{path} is truncated or damaged: {name} cannot be read ({error}); {how}") from None
    if values.dtype.kind not in NUMBERS:
        raise UserError(f"{path}: {name} holds {values.dtype}, expected real numbers; {how}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def mat_shapes(path: Path, *, how: str) -> dict[str, tuple[int, ...]]:
    require(path, how=how)
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return {k: v.shape[::-1] for k, v in file.items() if isinstance(v, h5py.Dataset)}
        return {name: tuple(shape) for name, shape, _ in whosmat(path)}
    except Exception:  # as above
        raise UserError(f"{path} is truncated or not a MATLAB file; {how}") from None
