"""Arrays of a data set folder, and the file `card.json` that describes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from pydantic import Field

from linearno.core.atomic_io import read_json, sha256, write_json
from linearno.core.config import Config
from linearno.core.errors import UserError, require
from linearno.core.provenance import commit, versions

CARD = "card.json"
FORMAT = 1


class ArrayFile(Config):
    """Shape, dtype and hash of a file."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str


class Card(Config):
    """Description of a generated set, written last: a folder with a card is complete.

    Args:
        format: version of this file's format.
        name: name of the benchmark.
        equation: solved equation.
        solver: numerical method.
        units: unit of each field.
        seed: seed of the random samples.
        resolution: resolution of the solver.
        sizes: number of samples of each split.
        scheme: scheme of a solver with several schemes.
        device: device of the solver; results on other devices differ by rounding.
        files: shape, dtype and hash of each file.
        rounding: largest error of each file rounded by `linearno data pack`.
        versions: versions of Python and packages that affect the results.
        commit: commit of this package.
    """

    format: int = FORMAT
    name: str
    equation: str
    solver: str
    units: dict[str, str]
    seed: int
    resolution: int
    sizes: dict[str, int]
    scheme: str | None = None
    device: str = "cpu"
    files: dict[str, ArrayFile]
    rounding: dict[str, float] = Field(default={})
    versions: dict[str, str]
    commit: str | None


def array_name(split: str, field: str) -> str:
    return f"{split}_{field}.npy"


def write_card(root: Path, names: Iterable[str], fields: dict[str, Any]) -> Card:
    """Hash the arrays called `names` and write `card.json`.

    Args:
        root: folder of the arrays.
        names: names of the files.
        fields: other fields of the card; versions and commit default to those of this machine.
    """
    files = {}
    for name in names:
        array = open_array(root / name, how="generate the set again")
        files[name] = {"shape": array.shape, "dtype": str(array.dtype), "sha256": sha256(root / name)}
    card = Card.make({"versions": versions(), "commit": commit(), **fields, "files": files})
    write_json(root / CARD, card.model_dump(mode="json"))
    return card


def read_card(root: Path, *, how: str) -> Card:
    values = read_json(root / CARD, how=how)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise UserError(f"{root / CARD} has format {version!r}; this version reads {FORMAT}: {how}")
    try:
        return Card.make(values)
    except UserError as error:
        raise UserError(f"{root / CARD}: {error}; {how}") from None


def read_card_for(root: Path, name: str, *, how: str) -> Card:
    """Read the card in `root`; raise unless it belongs to the benchmark `name`."""
    card = read_card(root, how=how)
    if card.name != name:
        raise UserError(f"{root} holds the set {card.name}, not {name}; give the folder of {name}")
    return card


def verify_hashes(root: Path, *, how: str) -> None:
    """Raise if the hash of a file differs from the card."""
    for name, fields in read_card(root, how=how).files.items():
        _require_hash(root / name, fields, how=how)


def _require_hash(path: Path, fields: ArrayFile, *, how: str) -> None:
    if sha256(require(path, how=how)) != fields.sha256:
        raise UserError(f"{path} is not the file that was made: its sha256 differs from the card; {how}")


def open_array(path: Path, *, how: str) -> ndarray:
    """Open a `.npy` file memory-mapped; raise if its header or length is wrong."""
    try:
        array = np.lib.format.open_memmap(require(path, how=how), mode="r")
    except (ValueError, OSError, EOFError):
        raise UserError(f"{path} is truncated or not a .npy file; {how}") from None
    if array.dtype.kind not in "fiub" or not array.ndim:
        raise UserError(f"{path} holds {array.dtype} {array.shape}; expected an array of real numbers; {how}")
    return array


def require_finite(values: ndarray, where: str, *, how: str, first: int = 0) -> None:
    """Raise for NaN and infinity; the message has the sample (axis 0), counted from `first`."""
    for index, sample in enumerate(values, start=first):
        if not np.isfinite(sample).all():
            raise UserError(f"{where}: sample {index} has NaN or infinite values; {how}")


def card_problems(root: Path, name: str, *, how: str) -> list[str]:
    """Differences between a folder and its card for the benchmark `name`, one line per file."""
    try:
        card = read_card_for(root, name, how=how)
    except UserError as error:
        return [str(error)]
    found = (_file_problem(root / file, fields, how) for file, fields in card.files.items())
    return [line for line in found if line]


def _file_problem(path: Path, fields: ArrayFile, how: str) -> str | None:
    try:
        array = open_array(path, how=how)
        if (array.shape, str(array.dtype)) != (fields.shape, fields.dtype):
            card = f"{fields.dtype} {fields.shape}"
            return f"{path} holds {array.dtype} {array.shape} but its card says {card}; {how}"
        require_finite(array, str(path), how=how)
        _require_hash(path, fields, how=how)
    except UserError as error:
        return str(error)
    return None
