"""Measured figures: one small JSON file each, named by its id, with all that says where it comes from."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field

from linearno.core.atomic_io import read_json, write_json
from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.provenance import commit, machine, versions

Finite = Annotated[float, Field(allow_inf_nan=False)]
ID = r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)+$"
AGAIN = "measure it again, or remove the file"


class Record(Config):
    """One figure. `against` holds what others reach, under their names and in the same unit."""

    id: Annotated[str, Field(pattern=ID)]  # bench/step/darcy lies in bench/step/darcy.json
    value: Finite
    unit: str
    against: dict[str, Finite] = Field(default={})
    recipe: str | None = None
    epochs: int | None = None
    seed: int | None = None
    data: str | None = None  # generated or published, with a hash
    device_minutes: Finite | None = None
    machine: str
    versions: dict[str, str]
    commit: str | None
    details: dict[str, Any] = Field(default={})


class Listing(NamedTuple):
    """What a folder holds: its records by id, and the files of another kind."""

    records: dict[str, Record]
    others: list[Path]


def new_record(
    id: str, value: float, unit: str, *, device: torch.device | None = None, **facts: Any
) -> Record:
    """A figure measured just now by this code on this machine; `facts` are the other fields of a record."""
    where = {"machine": machine(device), "versions": versions(), "commit": commit()}
    return Record.make({"id": id, "value": value, "unit": unit} | where | facts)


def record_path(folder: Path, id: str) -> Path:
    return folder / f"{id}.json"


def write_record(folder: Path, record: Record) -> Path:
    path = record_path(folder, record.id)
    write_json(path, record.model_dump(mode="json"))
    return path


def read_record(path: Path) -> Record:
    values = read_json(path, how=AGAIN)
    if not is_record(values):
        raise UserError(f"{path} is no record: it has no id; {AGAIN}")
    try:
        return Record.make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}; {AGAIN}") from None


def is_record(values: Any) -> bool:
    return isinstance(values, dict) and "id" in values


def read_records(folder: Path) -> Listing:
    """All records under `folder`; JSON of another kind is set apart, what is damaged or misnamed refused."""
    listing = Listing({}, [])
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of records; give a verb --out {folder}")
    for path in sorted(folder.rglob("*.json"), key=lambda path: path.with_suffix("")):
        if not is_record(read_json(path, how=AGAIN)):
            listing.others.append(path)
            continue
        record = read_record(path)
        if path != record_path(folder, record.id):
            raise UserError(
                f"{path} holds the record {record.id}; move it to {record_path(folder, record.id)}"
            )
        listing.records[record.id] = record
    return listing
