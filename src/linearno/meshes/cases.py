"""Data set of a folder of simulation files, described by a `dataset.yaml`."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.benchmark import Splits
from linearno.data.field_data import FieldData
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import find_cases, known_cases, split_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader, UnreadableCase, read_in_parallel
from linearno.meshes.tables import Table, read_table

SAME_POINTS = 1e-6  # largest difference between coordinates, over the extent of the mesh

log = logging.getLogger(__name__)


class CaseSplits(Splits):
    """Splits of a user's own cases, with facts that arrays do not hold.

    Attributes:
        test_names: names of the test cases.
        patches: patches of the boundary that all training cases have.
        quantities: integral quantities of each test case: weights (K,) of its points, by name.
    """

    test_names: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    quantities: tuple[Mapping[str, Tensor], ...] = ()

    def _replace(self, **changes: Any) -> "CaseSplits":
        """A copy with other splits and the same facts."""
        replaced = super()._replace(**changes)
        vars(replaced).update(vars(self))
        return replaced


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
    found = known_cases(find_cases(config.root, config.files, config.frames), config.cases)
    train, test = split_cases(found, config.train, config.test, config.seed)
    cases, bad = read_cases(config, [*train, *test])
    for line in skipped_lines(bad):
        log.warning("%s", line)
    in_test = {file.name for file in test}
    source = f"{len(cases)} cases in {config.root}"
    parts = [[case for case in cases if (case.file.name in in_test) == tested] for tested in (False, True)]
    points = points_in_common(cases)
    simulations = [case.file.simulation for case in parts[0]]
    groups = tuple(sorted(set(simulations)).index(name) for name in simulations)
    train_data = _join(config, parts[0], "train", points)
    splits = CaseSplits(
        replace(train_data, groups=groups if len(set(groups)) < len(groups) else ()),
        _join(config, parts[1], "test", points),
        f"{source}, without {len(bad)} that were skipped" if bad else source,
    )
    splits.test_names = tuple(case.file.name for case in parts[1])
    splits.patches = tuple(
        name for name in cases[0].patches if all(name in case.patches for case in parts[0])
    )
    splits.quantities = tuple(
        {name: torch.from_numpy(weights) for name, weights in case.weights.items()} for case in parts[1]
    )
    return splits


def points_in_common(cases: Sequence[Case]) -> Literal["same", "corresponding"] | None:
    """Whether meshes have the same points, or the same cells between points that have moved, or neither."""
    first = cases[0]
    if not first.topology or any(case.topology != first.topology for case in cases):
        return None
    marks = [np.zeros(0) if case.surface is None else case.surface for case in cases]
    if any(not np.array_equal(one, marks[0]) for one in marks):
        return None
    near = SAME_POINTS * np.ptp(first.coords, axis=0).max()
    same = all(np.allclose(case.coords, first.coords, rtol=0, atol=near) for case in cases)
    return "same" if same else "corresponding"


def skipped_lines(bad: Sequence[UnreadableCase]) -> Iterable[str]:
    """One line per skipped case, and one with their number."""
    yield from (f"skipped: {case.reason}" for case in bad)
    if bad:
        yield f"{len(bad)} case{'s' if len(bad) > 1 else ''} skipped"


def _join(
    config: CasesConfig, cases: Sequence[Case], split: str, points: Literal["same", "corresponding"] | None
) -> FieldData:
    """Cases as arrays of one shape if their points correspond, else packed."""
    if not cases:
        raise UserError(f"no case of the {split} split in {config.root} can be used")
    if points is not None:
        return _stack(config, cases, shared=points == "same")
    surface = [torch.from_numpy(case.surface) for case in cases if case.surface is not None]
    return FieldData.pack(config.spec, [case.sample() for case in cases], surface or None)


def _stack(config: CasesConfig, cases: Sequence[Case], *, shared: bool) -> FieldData:
    samples, marks = [case.sample() for case in cases], cases[0].surface
    coords = samples[0].coords if shared else torch.stack([sample.coords for sample in samples])
    inputs = [sample.inputs for sample in samples if sample.inputs is not None]
    surface = None if marks is None else torch.from_numpy(marks)
    if surface is not None and not shared:
        surface = surface.expand(len(cases), -1)
    targets = torch.stack([sample.targets for sample in samples])
    return FieldData(config.spec, coords, torch.stack(inputs) if inputs else None, targets, surface=surface)


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
