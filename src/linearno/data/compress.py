"""Pack a generated set into one compressed HDF5 file, for transfer to another machine.

Inputs are stored exactly. Outputs are rounded to multiples of a power of two, so that the last bits of most
numbers are zero and compress well.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.atomic_io import writable_folder, write_atomically
from linearno.core.errors import UserError, require, shorten
from linearno.data.generation.card import CARD, Card, card_problems, open_array, read_card, write_card

PRECISION = 1e-5  # largest rounding error of an output, relative to its range
CHUNK_BYTES = 2**20
SMALLEST_STEP = 2.0**-149  # smallest float32
FILTERS = {"compression": "gzip", "shuffle": True, "fletcher32": True}  # fletcher32: checksum
PACKED_FILE_HINT = "give a file written by `linearno data pack`"


def pack(
    benchmark: str, root: Path, out: Path, *, rounded: Sequence[str], how: str, channels: Sequence[str] = ()
) -> dict[str, float]:
    """Write a set to the file `out`, completely or not at all, and return the error of each rounded array.

    Args:
        benchmark: name of the benchmark.
        root: folder of the set, whose files must agree with its card.
        out: file to write.
        rounded: fields to round, each relative to its range.
        how: advice at the end of the message about a set that does not match its card.
        channels: rounded fields with several quantities in axis 1; each is rounded relative to its own range.
    """
    if problems := card_problems(root, benchmark, how=how):
        raise UserError(problems[0])
    card = read_card(root, how=how)
    arrays = {name: open_array(root / name, how=how) for name in card.files}
    fields = {name: Path(name).stem.split("_", 1)[1] for name in arrays}  # train_sol.npy holds sol
    steps = {
        name: _rounding_step(array, by_channel=fields[name] in channels)
        for name, array in arrays.items()
        if fields[name] in rounded
    }
    errors = {name: card.rounding.get(name, 0.0) + float(step.max()) / 2 for name, step in steps.items()}
    packed = card.model_copy(update={"rounding": card.rounding | errors})

    def write(temporary: Path) -> None:
        with h5py.File(temporary, "w", libver=("v110", "v110")) as file:  # smaller indices
            file.create_dataset(CARD, data=np.frombuffer(packed.model_dump_json().encode(), "u1"), **FILTERS)
            for name, array in arrays.items():
                samples = min(len(array), max(1, CHUNK_BYTES // array[0].nbytes))
                chunks = (samples, *array.shape[1:])
                stored = file.create_dataset(name, array.shape, array.dtype, chunks=chunks, **FILTERS)
                for part in stored.iter_chunks():
                    values = array[part]
                    stored[part] = np.rint(values / steps[name]) * steps[name] if name in steps else values

    write_atomically(out, write)
    return errors


def _rounding_step(array: Float[ndarray, "*shape"], *, by_channel: bool) -> Float[ndarray, "*#shape"]:
    """The largest power of two up to 2 · PRECISION · range, for all values or for each channel in axis 1."""
    axes = tuple(axis for axis in range(array.ndim) if not (by_channel and axis == 1))
    span = np.max(array, axes, keepdims=True).astype(float) - np.min(array, axes, keepdims=True)
    return 2.0 ** np.floor(np.log2(np.maximum(2 * PRECISION * span, SMALLEST_STEP)))


def unpack(path: Path, root: Path) -> Card:
    """Unpack a set into the empty folder `root`; its card lists the rounding errors."""
    if zipfile.is_zipfile(require(path, how=PACKED_FILE_HINT)):
        raise UserError(f"{path} was packed by an earlier version, in a format no longer read; pack it again")
    if not h5py.is_hdf5(path):
        raise UserError(f"{path} is not a packed set; {PACKED_FILE_HINT}")
    exists = root.exists()
    if exists and (not root.is_dir() or any(root.iterdir())):
        raise UserError(f"{root} is not an empty folder; choose another")
    part = writable_folder(root / ".part")
    try:
        with h5py.File(path) as file:
            card = _extract(file, part)
        for name in (*card.files, CARD):  # the card last: a folder with a card is complete
            os.replace(part / name, root / name)
        return card
    except (OSError, LookupError, RuntimeError, TypeError, ValueError, UserError) as error:
        raise UserError(
            f"{path} is damaged or not a packed set ({shorten(str(error))}); {PACKED_FILE_HINT}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if not exists:
            with suppress(OSError):  # not empty: it contains the set
                root.rmdir()


def _extract(file: h5py.File, root: Path) -> Card:
    card = Card.make(json.loads(_dataset(file, CARD)[:].tobytes()))
    for name, entry in card.files.items():
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not the name of a file")
        stored = _dataset(file, name)
        if (stored.shape, str(stored.dtype)) != (entry.shape, entry.dtype):
            raise ValueError(f"{name} is {stored.dtype} {stored.shape}, not {entry.dtype} {entry.shape}")
        array = np.lib.format.open_memmap(root / name, mode="w+", dtype=stored.dtype, shape=stored.shape)
        for part in stored.iter_chunks():
            array[part] = stored[part]
        array.flush()
    found = write_card(root, card.files, card.model_dump(mode="json", exclude={"files"}))
    for name, entry in card.files.items():
        if name not in card.rounding and found.files[name] != entry:
            raise ValueError(f"{name} is not the file that was packed: its sha256 differs from the card")
    return found


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The data set called `name`, which must not be a link (a link may lead to another file)."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink) or not isinstance(
        file[name], h5py.Dataset
    ):
        raise ValueError(f"it holds no array {name!r}")
    return file[name]
