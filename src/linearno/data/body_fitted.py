"""Sets on grids that follow a geometry: places `X` and `Y` and fields `Q` at the nodes of every sample."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from linearno.core.errors import UserError
from linearno.data.array_files import Files, Stored, open_stored, read_finite
from linearno.data.availability import (
    Source,
    choose_source,
    complaints,
    how_to_fetch,
    require_samples,
    set_problems,
    verify_tells,
)
from linearno.data.field_data import FieldData
from linearno.data.generation.card import open_array, require_finite
from linearno.data.sample import FieldSpec


class Curved(NamedTuple):
    files: Files
    published: dict[str, str]  # field → file with all samples
    channels: tuple[str, ...]  # of Q


Check = Callable[[Stored, list[Stored]], None]
WHOLE = {"airfoil": (2490, 221, 51), "pipe": (2310, 129, 129)}  # samples and grids of the published files


def open_curved(
    kind: Curved, root: Path, source: Source, sizes: Mapping[str, int], first: Callable[[int], int]
) -> tuple[list[Stored], str]:
    """The arrays of both splits, train before test, and where they come from.

    `first(held)` is the first sample to test on of a published file that holds so many.
    """
    if choose_source(root, source, kind.published.values()) == "generated":
        return open_stored(kind.files, root, "generated")
    fields = published_fields(kind, root)
    start = first(fields[0].shape[0])
    words = f"published files {', '.join(kind.published.values())} in {root}"
    both = [field._replace(split=split) for split in ("train", "test") for field in fields]
    return both, f"{words}, tested on samples {start} to {start + sizes['test'] - 1}"


def published_fields(kind: Curved, root: Path) -> list[Stored]:
    how = how_to_fetch(kind.files.benchmark, root)
    arrays = []
    for field, name in kind.published.items():
        array = open_array(root / name, how=how)
        arrays.append(Stored("both", field, root / name, array.shape, array.__getitem__))
    return arrays


def require_channels(array: Stored, kind: Curved) -> None:
    """Of an array whose axes are as many as they should be."""
    if array.field == "Q" and array.shape[1] != len(kind.channels):
        raise UserError(
            f"{array.path}: Q has {array.shape[1]} channels; expected {len(kind.channels)}: "
            f"{', '.join(kind.channels)}"
        )


def require_same_samples(arrays: list[Stored], sizes: Mapping[str, int]) -> None:
    """Every field has the same samples of a split, and enough of them."""
    for array in arrays:
        held, first = array.shape[0], next(other for other in arrays if other.split == array.split)
        if held != first.shape[0]:
            raise UserError(
                f"{array.path} holds {held} samples of {array.field}, but {first.path} holds "
                f"{first.shape[0]} of {first.field}; expected as many"
            )
        here = {other.split: sizes[other.split] for other in arrays if other.path == array.path}
        require_samples(array.path, array.field, held, here)


def require_whole(arrays: list[Stored], kind: Curved) -> None:
    """Published files hold all their samples at all their nodes."""
    whole = WHOLE[kind.files.benchmark]
    for array in arrays:
        held = (array.shape[0], *array.shape[-2:])
        if array.path.name in kind.published.values() and held != whole:
            words = [f"{samples:,} samples of {rows} × {columns}" for samples, rows, columns in (held, whole)]
            what = f"{array.field} has {words[0]}; the published file has {words[1]}"
            raise UserError(f"{array.path}: {what}")


def samples_of_split(
    arrays: list[Stored], split: str, sizes: Mapping[str, int], first: Callable[[int], int]
) -> slice:
    """Which samples of its file a split takes: a file of its own is read from the start."""
    paths = {array.path for array in arrays if array.field == "Q"}
    if split == "train" or len(paths) == 2:
        return slice(0, sizes[split])
    start = first(arrays[-1].shape[0])
    return slice(start, start + sizes[split])


def read_curved(
    fields: Mapping[str, Stored], spec: FieldSpec, samples: slice, *, stride: int, channel: int, name: str
) -> FieldData:
    """The asked-for samples of a split, every `stride`-th node, and one channel of Q as the target."""
    every, how = slice(None, None, stride), verify_tells(name, fields["X"].path.parent)
    x, y = (read_finite(fields[field], (samples, every, every), how=how) for field in "XY")
    target = read_finite(fields["Q"], (samples, slice(channel, channel + 1), every, every), how=how)
    return FieldData(spec, torch.stack([x, y], dim=-1).flatten(1, 2), None, target.flatten(1)[..., None])


def curved_problems(
    kind: Curved, require_shape: Check, read: Callable[[list[Stored]], object], root: Path
) -> list[str]:
    """What is wrong with the sets in `root`, a line each; `read` takes all samples of the published files."""
    published = [root / name for name in kind.published.values()]
    return set_problems(
        kind.files.benchmark, root, published, lambda: _published_problems(kind, require_shape, read, root)
    )


def _published_problems(
    kind: Curved, require_shape: Check, read: Callable[[list[Stored]], object], root: Path
) -> Iterator[str]:
    try:
        arrays = published_fields(kind, root)
    except UserError as error:
        yield str(error)
        return

    def check(array: Stored) -> None:
        require_shape(array, arrays)
        require_whole([array], kind)
        require_finite(array.read((slice(None),)), f"{array.path}: {array.field}", how="fetch the file again")

    found = list(complaints(check, arrays))
    yield from found or complaints(read, [arrays])
