"""Read MATLAB files of versions 5 (scipy) and 7.3 (HDF5 with reversed axes)."""

from pathlib import Path

import h5py
import numpy as np
from numpy import ndarray
from scipy.io import loadmat, whosmat

from linearno.core.errors import UserError, did_you_mean, require

NUMERIC_KINDS = "fiub"  # of numpy dtypes that become float32


class MatVariable:
    """Variable of a MATLAB file with axes in MATLAB's order; indexing reads a part as float32.

    Args:
        path: MATLAB file.
        name: name of the variable.
        how: advice at the end of the message about a damaged file.
    """

    def __init__(self, path: Path, name: str, *, how: str):
        shapes = mat_shapes(path, how=how)
        if name not in shapes:
            near = did_you_mean(name, shapes)
            raise UserError(f"{path} holds no variable {name!r} ({near}): another file, or truncated; {how}")
        self.path, self.name, self.how, self.shape = path, name, how, shapes[name]

    def __getitem__(self, index: tuple[slice, ...]) -> ndarray:
        try:
            if h5py.is_hdf5(self.path):
                with h5py.File(self.path) as file:
                    values = file[self.name][index[::-1]].T
            else:
                values = loadmat(self.path, variable_names=[self.name])[self.name][index]
        except MemoryError:
            raise
        except Exception as error:  # damaged files raise anything from zlib.error to IndexError
            raise UserError(
                f"{self.path} is truncated or damaged: {self.name} cannot be read ({error}); {self.how}"
            ) from None
        if values.dtype.kind not in NUMERIC_KINDS:
            raise UserError(
                f"{self.path}: {self.name} holds {values.dtype}, expected real numbers; {self.how}"
            )
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, dtype=np.float32)


def mat_shapes(path: Path, *, how: str) -> dict[str, tuple[int, ...]]:
    """Shapes of all variables in MATLAB's order, from the headers."""
    require(path, how=how)
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return {k: v.shape[::-1] for k, v in file.items() if isinstance(v, h5py.Dataset)}
        return {name: tuple(shape) for name, shape, _ in whosmat(path)}
    except Exception:  # as above
        raise UserError(f"{path} is truncated or not a MATLAB file; {how}") from None
