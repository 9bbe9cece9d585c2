"""Arrays of a benchmark on disk: generated `{split}_{field}.npy` or published files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.availability import (
    Kind,
    Source,
    choose_source,
    describe_generated,
    how_to_fetch,
    how_to_generate,
)
from linearno.data.generation.card import (
    CARD,
    array_name,
    card_problems,
    open_array,
    read_card_for,
    require_finite,
)
from linearno.data.generation.plan import SPLITS
from linearno.data.matlab import MatVariable

T = TypeVar("T")


class StoredArray(NamedTuple):
    """One field of one split.

    Args:
        split: "train", "test" or "val".
        field: name of the field.
        path: file that contains it.
        values: array-like, samples first; indexing reads from the file.
    """

    split: str
    field: str
    path: Path
    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@dataclass(frozen=True)
class StoredSet:
    """An open set; `read` loads parts of it.

    Args:
        arrays: arrays by split and field.
        sizes: sizes of the axes named by `ArraySet.axes`.
        samples: range of the samples of each split in its file.
        source: origin of the data, for `Splits.source`.
        how: advice at the end of messages about wrong values.
    """

    arrays: Mapping[tuple[str, str], StoredArray]
    sizes: Mapping[str, int]
    samples: Mapping[str, slice]
    source: str
    how: str

    def read(self, split: str, field: str, *index: slice) -> Tensor:
        """Part of a field as float32, (samples, …); NaN and infinity are refused.

        Args:
            split: "train", "test" or "val".
            field: name of the field.
            index: slices of the axes after the samples; complete axes by default.
        """
        array, samples = self.arrays[split, field], self.samples[split]
        rest = (slice(None),) * (len(array.shape) - 1 - len(index))
        with np.errstate(over="ignore"):  # infinity is refused below
            values = np.array(array.values[(samples, *index, *rest)], dtype=np.float32, order="C")
        require_finite(values, f"{array.path}: {field}", how=self.how, first=samples.start or 0)
        return torch.from_numpy(values)


def open_published(path: Path, field: str, how: str) -> Any:
    """A field of a published file: a variable of a MATLAB file, or the array of a `.npy` file."""
    return MatVariable(path, field, how=how) if path.suffix == ".mat" else open_array(path, how=how)


@dataclass(frozen=True)
class ArraySet:
    """The files of a benchmark.

    Args:
        name: name of the benchmark.
        axes: field → names of its axes after the axis of the samples. Axes of one name have one size in all
            files; a number is the size itself.
        published: split or field → file name. The file of a field contains all splits.
        published_sizes: sizes of axes in the published files, "samples" among them.
        open_published: (path, field, advice for messages) → array of a published file, samples first.
        check: raises UserError for an array of the wrong shape; called after the comparison with `axes`.
        folders: folders of the published files, relative to the root; the first that contains one is used.
    """

    name: str
    axes: Mapping[str, tuple[str, ...]]
    published: Mapping[str, str]
    published_sizes: Mapping[str, int] | None = None
    open_published: Callable[[Path, str, str], Any] = open_published
    check: Callable[[StoredArray], None] | None = None
    folders: tuple[str, ...] = ("",)

    @property
    def published_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.published.values()))

    def kind(self, root: Path, source: Source) -> Kind:
        names = {self._file_name(split, field) for split in ("train", "test") for field in self.axes}
        return choose_source(root, source, [str(Path(self._folder(root), name)) for name in names])

    def open(
        self, root: Path, source: Source, counts: Mapping[str, int], *, test_last: bool = False
    ) -> StoredSet:
        """Open the arrays of some splits and check their shapes and numbers of samples.

        Args:
            root: folder of the set.
            source: `auto` is the published files if they are present.
            counts: number of samples of each split.
            test_last: test on the last samples of a file. Otherwise on its first ones, or on those after the
                training samples if one file holds both.
        """
        published = self.kind(root, source) == "published"
        if published:
            arrays, origin = self._published(root, counts)
        else:
            card = read_card_for(root, self.name, how=how_to_generate(self.name, root))
            arrays, origin = self._generated(root, counts), describe_generated(card, root)
        sizes = self._axis_sizes(arrays)
        for array in arrays:
            self._require_shape(array, arrays, sizes, published=published)
        shared = len({a.path for a in arrays}) < len({(a.path, a.split) for a in arrays})
        samples = {}
        for array in arrays:
            _require_samples(array, counts if shared else {array.split: counts[array.split]})
            first = counts["train"] if shared and array.split == "test" else 0
            if test_last and array.split == "test":
                first = array.shape[0] - counts["test"]
            samples[array.split] = slice(first, first + counts[array.split])
        if published and shared:
            origin += f", tested on samples {samples['test'].start} to {samples['test'].stop - 1}"
        how = f"run `linearno data verify {self.name} --root {root}` for details"
        return StoredSet(_by_name(arrays), sizes, samples, origin, how)

    def verify(
        self, root: Path, inspect: Callable[[StoredSet, str], object] = lambda stored, split: None
    ) -> list[str]:
        """Problems of the sets in `root`, one line each: of the published files, the generated set, or both.

        Args:
            root: folder of the sets.
            inspect: raises UserError for wrong contents of a split of the published files, each of which then
                holds all samples of its file.
        """
        folder = root / self._folder(root)
        published = any((folder / name).exists() for name in self.published_names)
        lines = list(self._published_problems(root, inspect)) if published else []
        if not published or (root / CARD).exists():
            lines += card_problems(root, self.name, how=how_to_generate(self.name, root))
        return lines

    def _published_problems(self, root: Path, inspect: Callable[[StoredSet, str], object]) -> Iterator[str]:
        files = {self.published[split]: split for split in reversed(SPLITS) if split in self.published}
        try:
            arrays, _ = self._published(root, [*files.values()][::-1] or ["train"])  # every file once
        except UserError as error:
            yield str(error)
            return
        sizes, samples = self._axis_sizes(arrays), {array.split: slice(None) for array in arrays}
        stored = StoredSet(_by_name(arrays), sizes, samples, "", "fetch the file again")

        def check(array: StoredArray) -> None:
            self._require_shape(array, arrays, sizes, published=True)
            stored.read(array.split, array.field)

        lines = [*_complaints(check, arrays)]
        yield from lines or _complaints(lambda split: inspect(stored, split), samples)

    def _folder(self, root: Path) -> str:
        """The first folder with a published file, relative to `root`."""
        names = self.published_names
        found = (each for each in self.folders for name in names if (root / each / name).exists())
        return next(found, self.folders[0])

    def _file_name(self, split: str, field: str) -> str:
        return self.published.get(split) or self.published[field]

    def _generated(self, root: Path, splits: Iterable[str]) -> list[StoredArray]:
        how = how_to_generate(self.name, root)
        paths = {(split, field): root / array_name(split, field) for split in splits for field in self.axes}
        return [StoredArray(*name, path, open_array(path, how=how)) for name, path in paths.items()]

    def _published(self, root: Path, splits: Iterable[str]) -> tuple[list[StoredArray], str]:
        how, folder = how_to_fetch(self.name, root), root / self._folder(root)
        arrays = []
        for split in splits:
            for field in self.axes:
                path = folder / self._file_name(split, field)
                arrays.append(StoredArray(split, field, path, self.open_published(path, field, how)))
        names = list(dict.fromkeys(array.path.name for array in arrays))
        listed = " and ".join(names) if len(names) < 3 else ", ".join(names)
        return arrays, f"published files {listed} in {folder}"

    def _axis_sizes(self, arrays: Sequence[StoredArray]) -> dict[str, int]:
        """The size of each named axis in the first array that has it."""
        sizes: dict[str, int] = {}
        for array in arrays:
            for axis, size in zip(self.axes[array.field], array.shape[1:], strict=False):
                sizes.setdefault(axis, int(axis) if axis.isdigit() else size)
        return sizes

    def _require_shape(
        self, array: StoredArray, arrays: Sequence[StoredArray], sizes: Mapping[str, int], *, published: bool
    ) -> None:
        axes = ("samples", *self.axes[array.field])
        if array.shape[1:] != tuple(sizes.get(axis) for axis in axes[1:]):
            known = ", ".join(
                f"{axis} = {sizes[axis]}" for axis in dict.fromkeys(axes[1:]) if not axis.isdigit()
            )
            raise UserError(
                f"{array.path}: {array.field} has shape {array.shape}; expected ({', '.join(axes)}) "
                f"with {known}"
            )
        first = next(other for other in arrays if other.split == array.split)
        if array.shape[0] != first.shape[0]:
            raise UserError(
                f"{array.path} holds {array.shape[0]} samples of {array.field}, but {first.path} holds "
                f"{first.shape[0]} of {first.field}; expected as many"
            )
        if self.check:
            self.check(array)
        if published and self.published_sizes:
            whole = tuple(map(self.published_sizes.get, axes, array.shape))
            if array.shape != whole:
                raise UserError(
                    f"{array.path}: {array.field} has shape {array.shape}; the published file has {whole}"
                )


def _by_name(arrays: Iterable[StoredArray]) -> dict[tuple[str, str], StoredArray]:
    return {(array.split, array.field): array for array in arrays}


def _require_samples(array: StoredArray, counts: Mapping[str, int]) -> None:
    if array.shape[0] < sum(counts.values()):
        wanted = " and ".join(f"{split}={count}" for split, count in counts.items())
        names = " or ".join(f"data.{split}" for split in counts)
        raise UserError(
            f"{array.path} holds {array.shape[0]} samples of {array.field}, fewer than {wanted}; "
            f"lower {names} or generate more"
        )


def _complaints(check: Callable[[T], object], items: Iterable[T]) -> Iterator[str]:
    """Messages of the items for which `check` raises a UserError."""
    for item in items:
        try:
            check(item)
        except UserError as error:
            yield str(error)


def require_stride(stride: int, side: int, length: int) -> None:
    """Raise if the stride does not divide `length`: side − 1, or side on a torus."""
    if length % stride:
        divisors = [k for k in range(1, length + 1) if length % k == 0]
        raise UserError(
            f"stride={stride} does not fit {side} points a side (it must divide {length}); "
            f"these do: {', '.join(map(str, divisors))}"
        )


def unit_square(side: int) -> Float[Tensor, "N 2"]:
    """Points of a grid of s = `side` points a side: x varies fastest, from 0 to 1 inclusive."""
    x = torch.from_numpy(np.linspace(0, 1, side)).float()
    return torch.cartesian_prod(x, x).flip(1)
