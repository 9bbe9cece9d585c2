"""A user's own simulations as a data set: a folder of files, described by a `dataset.yaml`."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from linearno.core.errors import UserError
from linearno.data.benchmark import Splits
from linearno.data.field_data import FieldData
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import CaseFile, find_cases, read_table, split_cases
from linearno.meshes.reader_process import Reader, results_of

log = logging.getLogger(__name__)

READERS = 8  # at most, at once


class Bad(NamedTuple):
    """A case that cannot be used, and why."""

    file: CaseFile
    why: str


def read_cases(config: CasesConfig, files: Sequence[CaseFile]) -> tuple[list[Case], list[Bad]]:
    """The cases of these files, read by several processes at once, and those that cannot be used.

    Without `skip_bad` the latter are an error.
    """
    cases, source = (
        [],
        CaseReader(config, read_table(config.root if config.root.is_dir() else config.root.parent)),
    )

    def one(reader: Reader, file: CaseFile) -> Case | Bad:
        try:
            return source.read(reader, file)
        except UserError as error:
            return Bad(file, str(error))

    bad: list[Bad] = []
    with results_of(one, files, min(READERS, os.cpu_count() or 1)) as results:
        for result in results:
            if isinstance(result, Case):
                cases.append(result)
            else:
                bad.append(result)
    if bad and not config.skip_bad:
        more = f"and {len(bad) - 1} more of {len(files)} cases; " if len(bad) > 1 else ""
        raise UserError(f"{bad[0].why} ({more}data.skip_bad=true goes on without)")
    return cases, bad


def open_cases(config: CasesConfig) -> Splits:
    """Both splits in memory, packed: meshes of different sizes one after another.

    Disk   what `root` holds, described by the configuration
    Item   coords (K, X), inputs (K, C) or none, targets (K, C); of points or of cells
    """
    train, test = split_cases(find_cases(config.root, config.files), config.train, config.test, config.seed)
    cases, bad = read_cases(config, [*train, *test])
    for line in bad_lines(bad):
        log.warning("%s", line)
    tested = {file.name for file in test}
    parts = [
        _packed(config, [case for case in cases if (case.file.name in tested) == (split == "test")], split)
        for split in ("train", "test")
    ]
    source = f"{len(cases)} cases in {config.root}" + (
        f", without {len(bad)} that were skipped" if bad else ""
    )
    return Splits(parts[0], parts[1], source)


def bad_lines(bad: Sequence[Bad]) -> Iterable[str]:
    """What was left out and why, and how many there are."""
    yield from (f"skipped: {one.why}" for one in bad)
    if bad:
        yield f"{len(bad)} case{'s' if len(bad) > 1 else ''} skipped"


def _packed(config: CasesConfig, cases: Sequence[Case], split: str) -> FieldData:
    if not cases:
        raise UserError(f"no case of the {split} split in {config.root} can be used")
    surface = [torch.from_numpy(case.surface) for case in cases if case.surface is not None]
    return FieldData.pack(config.spec, [case.sample() for case in cases], surface or None)


def verify_cases(root: Path) -> list[str]:
    """What is wrong with the files in a folder, a line each."""

    def one(reader: Reader, file: CaseFile) -> str | None:
        try:
            words: dict[str, Any] = reader.ask("look", file.path, file.places)[0]
        except UserError as error:
            return str(error)
        return next((f"{file.path} {fault}" for fault in words["faults"].values()), None)

    try:
        with results_of(one, find_cases(root), min(READERS, os.cpu_count() or 1)) as results:
            return [line for line in results if line]
    except UserError as error:
        return [str(error)]
