"""Dictionaries of arrays that `np.save` pickled, read without running anything that the file asks for.

Such a `.npy` file is a header that says "one Python object", then a pickle. A pickle is a program: it names
functions and calls them. Here numpy's own names lead to the classes below, which keep bytes and nothing else,
and any other name is refused.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean, require

KINDS = ("f8", "f4")  # what the fields of a published set hold


class _Kind:
    """In place of numpy.dtype."""

    def __init__(self, code: str = "", *rest: Any):
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.code = state[1] + self.code  # byte order, then type and size: <f8


class _Array:
    """In place of numpy.ndarray: its state as numpy pickles it."""

    shape: tuple[int, ...]
    kind: _Kind
    columns_first: bool
    data: Any  # bytes, or a list for an array of objects

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.kind, self.columns_first, self.data = state

    def values(self) -> ndarray:
        if self.kind.code.lstrip("<>=") not in KINDS:
            raise TypeError(f"holds {self.kind.code}, expected real numbers")
        flat = np.frombuffer(self.data, dtype=self.kind.code)
        return flat.reshape(self.shape, order="F" if self.columns_first else "C")


def _new_array(*_: Any) -> _Array:
    """In place of numpy's function that begins an array."""
    return _Array()


STANDINS = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _new_array,  # numpy 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STANDINS:
            asked = f"{module}.{name}"
            raise UserError(f"asks for {asked!r}, which is no part of an array, and was not opened")
        return STANDINS[module, name]


def read_pickled(path: Path, names: tuple[str, ...], *, how: str) -> dict[str, ndarray]:
    """The arrays of those names from a dictionary that `np.save` wrote, as they are in the file."""
    require(path, how=how)
    try:
        with path.open("rb") as file:
            _skip_header(file)
            arrays = _Unpickler(file).load().data[0]
        missing = [name for name in names if name not in arrays]
    except UserError as error:
        raise UserError(f"{path} {error}; {how}") from None
    except MemoryError:  # a length in broken bytes may be any number
        words = "asks for more memory than there is: it is damaged, or too large for this machine"
        raise UserError(f"{path} {words}; {how}") from None
    except Exception:  # broken bytes raise anything, from EOFError to IndexError
        raise UserError(f"{path} is truncated or no dictionary that numpy saved; {how}") from None
    if missing:
        raise UserError(f"{path} holds no {missing[0]!r} ({did_you_mean(missing[0], arrays)}); {how}")
    return {name: _values(path, name, arrays[name], how=how) for name in names}


def _skip_header(file: Any) -> None:
    """Past the header of one object; ValueError for any other."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if shape or not dtype.hasobject:
        raise ValueError(f"an array of {dtype}, not a pickled dictionary")


def _values(path: Path, name: str, array: Any, *, how: str) -> ndarray:
    try:
        return _Array.values(array)
    except Exception as error:  # as above
        raise UserError(f"{path}: {name} is no array of real numbers ({error}); {how}") from None
