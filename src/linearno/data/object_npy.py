"""Read dictionaries of arrays that `np.save` pickled, without running code from the file.

Such a `.npy` file is a header followed by a pickle, which may call any function. Here only numpy's array and
dtype are allowed, replaced by a passive class, because numpy's own classes accept states that corrupt memory.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean, require

ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"),  # numpy 2
}
DTYPES = ("<f8", "<f4", ">f8", ">f4")


class _Pickled:
    """Arguments and state of a pickled array or dtype."""

    def __init__(self, *args: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> ndarray:
        """Array from numpy's pickled state (version, shape, dtype, Fortran order, bytes)."""
        _, shape, dtype, fortran_order, data = self.state
        code = dtype.state[1] + dtype.args[0]
        if code not in DTYPES:
            raise TypeError(f"holds {code}, expected real numbers")
        return np.frombuffer(data, code).reshape(shape, order="F" if fortran_order else "C")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Pickled]:
        if (module, name) not in ALLOWED:
            raise UserError(f"refers to '{module}.{name}', which is not part of an array, and was not opened")
        return _Pickled


def read_pickled(path: Path, names: tuple[str, ...], *, how: str) -> dict[str, ndarray]:
    """Read the arrays called `names` of a dictionary written by `np.save`."""
    require(path, how=how)
    try:
        with path.open("rb") as file:
            _skip_header(file)
            (content,) = _Unpickler(file).load().state[4]
        arrays = dict(content.items())
        missing = [name for name in names if name not in arrays]
    except UserError as error:
        raise UserError(f"{path} {error}; {how}") from None
    except MemoryError:  # damaged bytes may declare any length
        problem = "needs more memory than available: it is damaged, or too large for this machine"
        raise UserError(f"{path} {problem}; {how}") from None
    except Exception:  # damaged bytes raise anything, from EOFError to IndexError
        raise UserError(f"{path} is truncated or no dictionary that numpy saved; {how}") from None
    if missing:
        raise UserError(
            f"{path} holds no {missing[0]!r} ({did_you_mean(missing[0], map(str, arrays))}); {how}"
        )
    return {name: _to_real_array(path, name, arrays[name], how=how) for name in names}


def _skip_header(file: Any) -> None:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if shape or not dtype.hasobject:
        raise ValueError(f"an array of {dtype}, not a pickled dictionary")


def _to_real_array(path: Path, name: str, pickled: Any, *, how: str) -> ndarray:
    """The array behind an unpickled entry; an error if it is none of real numbers."""
    try:
        return _Pickled.array(pickled)
    except Exception as error:  # as above
        raise UserError(f"{path}: {name} is no array of real numbers ({error}); {how}") from None
