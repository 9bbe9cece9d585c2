"""Records: measured figures with machine, versions and commit, one JSON file each, named by its id."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field

from linearno.core.atomic_io import read_json, write_json
from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.provenance import commit, machine, versions

Finite = Annotated[float, Field(allow_inf_nan=False)]
ID_PATTERN = r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)+$"
REMEASURE_HINT = "measure it again, or remove the file"


class Record(Config):
    """One measured figure.

    Args:
        id: path of the record without suffix: bench/step/darcy is stored in bench/step/darcy.json.
        value: the figure.
        unit: unit of the figure.
        against: values of other implementations or publications in the same unit, by name.
        recipe: name of the trained recipe.
        epochs: epochs of training.
        seed: random seed.
        data: `generated` or `published`, with a hash of the files.
        device_minutes: training time.
        machine: processor, accelerator and system.
        versions: versions of Python and libraries.
        commit: commit of this repository.
        details: further figures, specific to the kind of record.
    """

    id: Annotated[str, Field(pattern=ID_PATTERN)]
    value: Finite
    unit: str
    against: dict[str, Finite] = Field(default={})
    recipe: str | None = None
    epochs: int | None = None
    seed: int | None = None
    data: str | None = None
    device_minutes: Finite | None = None
    machine: str
    versions: dict[str, str]
    commit: str | None
    details: dict[str, Any] = Field(default={})


class Listing(NamedTuple):
    """Records of a folder by id, and JSON files that are no records."""

    records: dict[str, Record]
    other_files: list[Path]


def new_record(
    id: str, value: float, unit: str, *, device: torch.device | None = None, **fields: Any
) -> Record:
    """A record with the current machine, versions and commit; `fields` are the other fields of `Record`."""
    origin = {"machine": machine(device), "versions": versions(), "commit": commit()}
    return Record.make({"id": id, "value": value, "unit": unit} | origin | fields)


def record_path(folder: Path, id: str) -> Path:
    return folder / f"{id}.json"


def write_record(folder: Path, record: Record) -> Path:
    path = record_path(folder, record.id)
    write_json(path, record.model_dump(mode="json"))
    return path


def read_record(path: Path) -> Record:
    values = read_json(path, how=REMEASURE_HINT)
    if not is_record(values):
        raise UserError(f"{path} is not a record: it has no id; {REMEASURE_HINT}")
    try:
        return Record.make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}; {REMEASURE_HINT}") from None


def is_record(values: Any) -> bool:
    return isinstance(values, dict) and "id" in values


def read_records(folder: Path) -> Listing:
    """Read all records under `folder`. Damaged or misnamed records are errors."""
    listing = Listing({}, [])
    if not folder.is_dir():
        raise UserError(f"no folder of records {folder}; write records with --out {folder}")
    for path in sorted(folder.rglob("*.json"), key=lambda path: path.with_suffix("")):
        if not is_record(read_json(path, how=REMEASURE_HINT)):
            listing.other_files.append(path)
            continue
        record = read_record(path)
        if path != record_path(folder, record.id):
            raise UserError(
                f"{path} contains the record {record.id}; move it to {record_path(folder, record.id)}"
            )
        listing.records[record.id] = record
    return listing
