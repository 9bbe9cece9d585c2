"""`history.jsonl`: one line of JSON for each finished epoch."""

import logging
from math import inf
from pathlib import Path

from pydantic import ValidationError

from linearno.core.atomic_io import write_text
from linearno.core.config import Config
from linearno.core.errors import UserError

log = logging.getLogger(__name__)


class EpochRecord(Config):
    """One epoch of a run. Epochs and steps are counted from one."""

    epoch: int
    step: int  # optimiser steps since the start of the run
    loss: float  # mean per sample
    lr: float  # of the last step
    grad_norm: float  # mean over the steps, before clipping
    seconds: float  # without validation and checkpoints
    samples_per_second: float
    validation: float | None = None  # mean error of the validation samples
    processes: int = 1


def append_history(path: Path, record: EpochRecord) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder") from None


def cut_history(path: Path, epochs: int) -> None:
    """Remove the records after `epochs`: a killed run wrote them after its last checkpoint."""
    records = [record for record in read_history(path) if record.epoch <= epochs]
    if len(records) < epochs:
        log.warning("%s lacks %d of the %d epochs already trained", path, epochs - len(records), epochs)
    write_text(path, "".join(record.model_dump_json() + "\n" for record in records))


def has_stalled(records: list[EpochRecord], patience: int) -> bool:
    """Whether the validation error has not fallen for `patience` epochs; never if that is 0."""
    known = [inf if record.validation is None else record.validation for record in records]
    return bool(patience and known) and len(known) - 1 - known.index(min(known)) >= patience


def read_history(path: Path) -> list[EpochRecord]:
    """The records of a run; lines that a kill cut short are skipped."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(EpochRecord.model_validate_json(line))
        except ValidationError:
            log.warning("%s holds a line that is no record: %.60s", path, line)
    return records
