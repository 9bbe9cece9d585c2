"""A generated set as one small file, to be carried to another machine.

Fields that a network is given stay as they are. Those that it is to predict become 16-bit numbers between
their smallest and largest value: wrong by 1/131,070 of that range at most, less than 1e-5, and by what
float32 rounds. Both are stored as differences from point to point, low bytes apart from high ones, which
compress well, and with them the card.
"""

import json
import lzma
import os
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Shaped
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.atomic_io import writable_folder, write_atomically
from linearno.core.config import Config
from linearno.core.errors import UserError, require
from linearno.data.generation.card import CARD, Card, card_problems, open_array, read_card, write_card

LEVELS = 2**16 - 1
FACTS = "pack.json"
HOW = "give a file that `linearno data pack` wrote"
CHUNK = 64  # samples at a time

Rounded = list[tuple[float, float]]  # lowest value and step, of all or of each channel

DAMAGED = (  # what a file that is no pack makes `zipfile`, its decompressors and numpy raise
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
)


class Facts(Config):
    rounded: dict[str, Rounded]
    chunk: PositiveInt


def pack(
    benchmark: str,
    root: Path,
    out: Path,
    *,
    rounded: Sequence[str],
    how: str,
    channels: Sequence[str] = (),
) -> dict[str, float]:
    """Write the benchmark's set in `root`, which has to be as its card says, as the file `out`, whole or not
    at all; how far each rounded array is off.

    `rounded` are the names of the fields that may be, `channels` of those with several fields in axis 1, each
    of which then has its own range.
    """
    if problems := card_problems(root, benchmark, how=how):
        raise UserError(problems[0])
    card = read_card(root, how=how)
    arrays = {name: open_array(root / name, how=how) for name in card.files}
    ranges = {
        name: _ranges(array, apart=_field(name) in channels)
        for name, array in arrays.items()
        if _field(name) in rounded
    }

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_LZMA) as file:
            file.writestr(CARD, json.dumps(card.model_dump(mode="json")))
            file.writestr(FACTS, json.dumps({"rounded": ranges, "chunk": CHUNK}))
            for name, array in arrays.items():
                for place, start in enumerate(range(0, len(array), CHUNK)):
                    part = np.asarray(array[start : start + CHUNK], dtype=np.float32)
                    file.writestr(f"{name}/{place}", _squeeze(part, ranges.get(name)))

    write_atomically(out, write)
    return _worst(ranges, card.rounding)


def unpack(path: Path, root: Path) -> Card:
    """Fill `root` with the set that a packed file holds, and a card that states the rounding."""
    require(path, how=HOW)
    there = root.exists()
    if there and (not root.is_dir() or any(root.iterdir())):
        raise UserError(f"{root} is not an empty folder; choose another")
    part = writable_folder(root / ".part")
    try:
        card = _unpack(path, part)
        for name in (*card.files, CARD):  # the card last: a folder that has one is complete
            os.replace(part / name, root / name)
        return card
    except DAMAGED as error:
        raise UserError(f"{path} is damaged or no packed set ({error}); {HOW}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if not there:
            with suppress(OSError):  # it holds the set
                root.rmdir()


def _unpack(path: Path, root: Path) -> Card:
    with zipfile.ZipFile(path) as file:
        card, facts = _read_facts(file)
        for name, known in card.files.items():
            _restore(file, name, root / name, known.shape, facts.rounded.get(name), facts.chunk)
    kept = card.model_dump(mode="json", exclude={"files", "rounding"})
    found = write_card(root, card.files, kept | {"rounding": _worst(facts.rounded, card.rounding)})
    for name, known in card.files.items():
        if name not in facts.rounded and found.files[name] != known:
            raise ValueError(f"{name} is not the file that was packed: its sha256 differs from the card")
    return found


def _read_facts(file: zipfile.ZipFile) -> tuple[Card, Facts]:
    try:
        card, facts = Card.make(json.loads(file.read(CARD))), Facts.make(json.loads(file.read(FACTS)))
    except UserError as error:
        raise ValueError(str(error)) from None
    for name in card.files:
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not the name of a file")
    return card, facts


def _worst(ranges: Mapping[str, Rounded], before: Mapping[str, float]) -> dict[str, float]:
    """How far the numbers of each file may be off, with what they were off `before`."""
    return {
        name: before.get(name, 0.0) + max(step / 2 + _float32_step(low, step) for low, step in parts)
        for name, parts in ranges.items()
    }


def _float32_step(low: float, step: float) -> float:
    """Between neighbouring numbers of float32 where they are farthest apart in a range."""
    return float(np.spacing(np.float32(max(abs(low), abs(low + LEVELS * step)))))


def _field(name: str) -> str:
    """`train_sol.npy` holds the field `sol`."""
    return Path(name).stem.split("_", 1)[1]


def _ranges(array: Float[ndarray, "S *rest"], *, apart: bool) -> Rounded:
    """In pieces: the array may be larger than memory."""
    pieces = [_by_channel(array[start : start + CHUNK], apart) for start in range(0, len(array), CHUNK)]
    low = np.min([piece.min(axis=(0, 2)) for piece in pieces], axis=0).astype(float)
    high = np.max([piece.max(axis=(0, 2)) for piece in pieces], axis=0).astype(float)
    return list(zip(low.tolist(), ((high - low) / LEVELS).tolist(), strict=True))


def _by_channel(part: Shaped[ndarray, "S *rest"], apart: bool) -> Shaped[ndarray, "S C n"]:
    return np.asarray(part).reshape(len(part), part.shape[1] if apart else 1, -1)


def _squeeze(part: Float32[ndarray, "S *rest"], rounded: Rounded | None) -> bytes:
    if rounded is None:
        words = part.view(np.uint32)
    else:
        low, step = np.array(rounded).T[:, :, None]
        fields = _by_channel(part, len(rounded) > 1).astype(np.float64)
        words = np.rint((fields - low) / np.where(step > 0, step, 1)).astype(np.uint16)
    steps = np.diff(words.reshape(len(part), -1), axis=-1, prepend=words.dtype.type(0))
    return np.ascontiguousarray(steps.view(np.uint8).reshape(-1, words.itemsize).T).tobytes()


def _restore(
    file: zipfile.ZipFile, name: str, path: Path, shape: Sequence[int], rounded: Rounded | None, chunk: int
) -> None:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=tuple(shape))
    for place, start in enumerate(range(0, shape[0], chunk)):
        part = array[start : start + chunk]
        words = _stretch(file.read(f"{name}/{place}"), len(part), np.uint32 if rounded is None else np.uint16)
        if rounded is None:
            part[:] = words.view(np.float32).reshape(part.shape)
        else:
            low, step = np.array(rounded).T[:, :, None]
            fields = words.reshape(len(part), len(rounded), -1).astype(np.float64)
            part[:] = (low + step * fields).reshape(part.shape)
    array.flush()


def _stretch(content: bytes, samples: int, kind: type) -> Shaped[ndarray, "S n"]:
    planes = np.frombuffer(content, dtype=np.uint8).reshape(np.dtype(kind).itemsize, -1)
    steps: ndarray = np.ascontiguousarray(planes.T).view(kind).reshape(samples, -1)
    return np.cumsum(steps, axis=-1, dtype=kind)
