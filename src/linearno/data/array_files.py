"""A benchmark's arrays on disk, as `generate` writes them or under their published names."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.availability import (
    Source,
    choose_source,
    complaints,
    generated_words,
    how_to_fetch,
    how_to_generate,
    set_problems,
)
from linearno.data.generation.card import array_name, open_array, read_card_for, require_finite
from linearno.data.matlab import mat_shape, read_mat


class Files(NamedTuple):
    """What a benchmark keeps on disk. Axes named `n` are the sides of one square grid."""

    benchmark: str
    axes: dict[str, tuple[str, ...]]  # field → its axes after that of the samples
    published: dict[str, str]  # split → file name; one file may hold both


class Stored(NamedTuple):
    """One array (samples, …) on disk, not read yet."""

    split: str
    field: str
    path: Path
    shape: tuple[int, ...]
    read: Callable[[tuple[slice, ...]], ndarray]


def open_stored(files: Files, root: Path, source: Source) -> tuple[list[Stored], str]:
    """Every array of the set in `root`, train before test, and where the set comes from in words.

    `auto` takes the published files where all lie in `root`, and the generated set otherwise.
    """
    kind = choose_source(root, source, files.published.values())
    return _published(files, root) if kind == "published" else _generated(files, root)


def _generated(files: Files, root: Path) -> tuple[list[Stored], str]:
    how = how_to_generate(files.benchmark, root)
    card = read_card_for(root, files.benchmark, how=how)
    arrays = []
    for split in ("train", "test"):
        for field in files.axes:
            path = root / array_name(split, field)
            array = open_array(path, how=how)
            arrays.append(Stored(split, field, path, array.shape, array.__getitem__))
    return arrays, generated_words(card, root)


def _published(files: Files, root: Path) -> tuple[list[Stored], str]:
    how = how_to_fetch(files.benchmark, root)
    arrays = []
    for split, name in files.published.items():
        for field in files.axes:
            path = root / name

            def read(index: tuple[slice, ...], path: Path = path, field: str = field) -> ndarray:
                return read_mat(path, field, index, how=how)

            arrays.append(Stored(split, field, path, mat_shape(path, field, how=how), read))
    names = " and ".join(dict.fromkeys(files.published.values()))
    return arrays, f"published files {names} in {root}"


def side_of(arrays: list[Stored]) -> int:
    """Points a side of the grid that the arrays should share."""
    return arrays[0].shape[1] if len(arrays[0].shape) > 1 else 0


def require_shape(array: Stored, files: Files, side: int) -> None:
    expected = ("samples", *files.axes[array.field])
    fits = len(array.shape) == len(expected) and all(
        size == side for size, axis in zip(array.shape, expected, strict=True) if axis == "n"
    )
    if not fits:
        raise UserError(
            f"{array.path}: {array.field} has shape {array.shape}; expected ({', '.join(expected)}), "
            "with the same n in every file"
        )


def asked_of(array: Stored, arrays: list[Stored], sizes: Mapping[str, int]) -> dict[str, int]:
    """The splits that are taken from the file of an array, and how many samples of each."""
    return {other.split: sizes[other.split] for other in arrays if other.path == array.path}


def samples_of(array: Stored, sizes: Mapping[str, int]) -> slice:
    """The first of an array to train on, the last to test on."""
    total, count = array.shape[0], sizes[array.split]
    return slice(0, count) if array.split == "train" else slice(total - count, total)


def require_stride(stride: int, side: int, length: int) -> None:
    """`length`: what a stride must divide, side − 1 where both ends are kept and side on a torus."""
    if length % stride:
        fitting = [k for k in range(1, length + 1) if length % k == 0]
        raise UserError(
            f"stride={stride} does not fit {side} points a side (it must divide {length}); "
            f"these do: {', '.join(map(str, fitting))}"
        )


def read_finite(array: Stored, index: tuple[slice, ...], *, how: str) -> Tensor:
    """A part of the array as float32; the first slice is over the samples."""
    values = np.array(array.read(index), dtype=np.float32, order="C")
    require_finite(values, f"{array.path}: {array.field}", how=how, first=index[0].start or 0)
    return torch.from_numpy(values)


def unit_square(side: int) -> Float[Tensor, "N 2"]:
    """Point k is at row k div s and column k mod s: x = column/(s − 1) varies fastest, y = row/(s − 1)."""
    x = torch.from_numpy(np.linspace(0, 1, side)).float()
    return torch.cartesian_prod(x, x).flip(1)


def stored_problems(files: Files, root: Path, require: Callable[[Stored], None] | None = None) -> list[str]:
    """What is wrong with the sets in `root`, a line each; `require` looks at what is one benchmark's own."""

    def published() -> Iterator[str]:
        try:
            arrays, _ = _published(files, root)
        except UserError as error:
            yield str(error)
            return

        def check(array: Stored) -> None:
            require_shape(array, files, side_of(arrays))
            if require:
                require(array)
            read_finite(array, (slice(None),) * len(array.shape), how="fetch the file again")

        yield from complaints(check, {(array.path, array.field): array for array in arrays}.values())

    return set_problems(files.benchmark, root, [root / name for name in files.published.values()], published)
