"""Data set of a folder of simulation files, described by a `dataset.yaml`."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from linearno.core.errors import UserError
from linearno.data.benchmark import Splits
from linearno.data.field_data import FieldData
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import find_cases, split_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader, UnreadableCase, read_in_parallel
from linearno.meshes.tables import Table, read_table

log = logging.getLogger(__name__)


def read_cases(config: CasesConfig, files: Sequence[CaseFile]) -> tuple[list[Case], list[UnreadableCase]]:
    """Read cases; also return the unusable ones, which are an error without `skip_bad`."""
    source = CaseReader(config, table_of(config, files))
    results = read_in_parallel(source.read, files)
    bad = [result for result in results if isinstance(result, UnreadableCase)]
    if bad and not config.skip_bad:
        more = f"and {len(bad) - 1} more of {len(files)} cases; " if len(bad) > 1 else ""
        raise UserError(f"{bad[0].reason} ({more}data.skip_bad=true leaves such cases out)")
    return [result for result in results if isinstance(result, Case)], bad


def table_of(config: CasesConfig, files: Sequence[CaseFile]) -> Table:
    """The table of the cases; messages about rows and cases that do not match are logged."""
    table = read_table(config.root if config.root.is_dir() else config.root.parent, files, config.parameters)
    for line in table.mismatches(files):
        log.info("%s", line)
    return table


def open_cases(config: CasesConfig) -> Splits:
    """Load both splits, packed.

    Disk   the files in `root`, described by the configuration
    Item   coords (K, X), inputs (K, C) or none, targets (K, C); of points or of cells
    """
    train, test = split_cases(
        find_cases(config.root, config.files, config.frames), config.train, config.test, config.seed
    )
    cases, bad = read_cases(config, [*train, *test])
    for line in skipped_lines(bad):
        log.warning("%s", line)
    in_test = {file.name for file in test}
    source = f"{len(cases)} cases in {config.root}"
    return Splits(
        _pack(config, [case for case in cases if case.file.name not in in_test], "train"),
        _pack(config, [case for case in cases if case.file.name in in_test], "test"),
        f"{source}, without {len(bad)} that were skipped" if bad else source,
    )


def skipped_lines(bad: Sequence[UnreadableCase]) -> Iterable[str]:
    """One line per skipped case, and one with their number."""
    yield from (f"skipped: {case.reason}" for case in bad)
    if bad:
        yield f"{len(bad)} case{'s' if len(bad) > 1 else ''} skipped"


def _pack(config: CasesConfig, cases: Sequence[Case], split: str) -> FieldData:
    if not cases:
        raise UserError(f"no case of the {split} split in {config.root} can be used")
    surface = [torch.from_numpy(case.surface) for case in cases if case.surface is not None]
    return FieldData.pack(config.spec, [case.sample() for case in cases], surface or None)


def verify_cases(root: Path) -> list[str]:
    """First fault of each file in a folder, one line per faulty file."""

    def first_fault(reader: Reader, file: CaseFile) -> str | None:
        faults = reader.call(commands.summarise, file).faults
        return next((f"{file.path} {fault}" for fault in faults.values()), None)

    try:
        results = read_in_parallel(first_fault, find_cases(root))
    except UserError as error:
        return [str(error)]
    return [result.reason if isinstance(result, UnreadableCase) else result for result in results if result]
