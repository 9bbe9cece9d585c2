"""Which files of a folder are cases, what a table beside them tells of each, and how they are split."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError, require
from linearno.core.randomness import numpy_generator
from linearno.meshes.reader.io import ENDINGS
from linearno.meshes.reader.ipc import Words
from linearno.meshes.reader.mesh import split_unit

TABLES = ("cases.csv", "cases.json")
KEYS = ("case", "file", "name")  # of the column that says which case a row is of
SURFACE = ".stl"
Share = int | float | tuple[str, ...]  # a number of cases, a fraction of them, or patterns of their names


@dataclass(frozen=True)
class CaseFile:
    """One simulation: its file, and the surface that lies beside it under the same name."""

    name: str  # path below the folder, without ending
    path: Path
    beside: Path | None = None

    @property
    def places(self) -> Words:
        """As a reader wants it."""
        return {"beside": None if self.beside is None else str(self.beside)}


def find_cases(root: Path, pattern: str = "**/*") -> list[CaseFile]:
    """The cases in a folder, by name. A file may be given too: it is the only case then."""
    require(root, how="give a folder of cases, or one file")
    if root.is_file():
        return [case_file(root)]
    found = [path for path in sorted(root.glob(pattern)) if _is_case(path)]
    if not found:
        raise UserError(f"{root} holds no case ({pattern}); expected files of {', '.join(ENDINGS)}")
    stems = {path.with_suffix("") for path in found if path.suffix.lower() != SURFACE}
    cases = [
        case_file(path, root)
        for path in found
        if path.suffix.lower() != SURFACE or path.with_suffix("") not in stems
    ]
    if twice := _repeated([case.name for case in cases]):
        raise UserError(f"{root} holds {twice!r} in several formats; choose one, as in files: '**/*.vtu'")
    return cases


def case_file(path: Path, root: Path | None = None) -> CaseFile:
    """The file as a case of its own."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: expected one of {', '.join(ENDINGS)}, got {path.suffix or 'no ending'!r}")
    require(path, how="give a mesh, or a file of arrays")
    name = path.relative_to(root or path.parent).with_suffix("").as_posix()
    surface = path.with_suffix(SURFACE)
    beside = surface if path.suffix.lower() != SURFACE and surface.exists() else None
    return CaseFile(name, path, beside)


def _is_case(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.is_file() and path.suffix.lower() in ENDINGS and path.name not in TABLES and not hidden


def _repeated(names: Sequence[str]) -> str | None:
    return (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )


@dataclass(frozen=True)
class Table:
    """Numbers of each case, by its name, its file name or the last part of it."""

    rows: Mapping[str, Mapping[str, float]]
    units: Mapping[str, str]
    path: Path | None = None

    def of(self, case: CaseFile) -> Mapping[str, float]:
        for key in (case.name, case.path.name, case.path.stem):
            if key in self.rows:
                return self.rows[key]
        return {}

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))


def read_table(folder: Path) -> Table:
    """`cases.csv` or `cases.json` in the folder; nothing where there is none."""
    path = next((folder / name for name in TABLES if (folder / name).exists()), None)
    if path is None:
        return Table({}, {})
    rows, units = _from_json(path) if path.suffix == ".json" else _from_csv(path)
    return Table(rows, units, path)


def _from_csv(path: Path) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = list(csv.DictReader(file, restkey="", restval=""))
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a table; expected comma-separated values") from None
    heads = {head: split_unit(head.strip()) for head in (found[0] if found else {})}
    key = next((head for head, (name, _) in heads.items() if name.lower() in KEYS), None)
    if key is None:
        raise UserError(f"{path}: expected a column {' or '.join(KEYS)} that names the cases")
    rows = {row[key].strip(): _numbers(path, row[key], row, heads, key) for row in found}
    return rows, {name: unit for name, unit in heads.values() if unit}


def _numbers(
    path: Path, case: str, row: Mapping[str, str], heads: Mapping[str, tuple[str, str | None]], key: str
) -> dict[str, float]:
    numbers = {}
    for head, (name, _) in heads.items():
        if head == key or not str(row[head]).strip():
            continue
        try:
            numbers[name] = float(row[head])
        except (TypeError, ValueError):
            raise UserError(f"{path}: {name} of {case} is {row[head]!r}, expected a number") from None
        if not np.isfinite(numbers[name]):
            raise UserError(f"{path}: {name} of {case} is {row[head]}, expected a finite number")
    return numbers


def _from_json(path: Path) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    how = 'expected {"case": {"name": number}}'
    values = read_json(path, how=how)
    if not isinstance(values, dict) or not all(isinstance(row, dict) for row in values.values()):
        raise UserError(f"{path}: {how}")
    heads = {head: split_unit(head) for row in values.values() for head in row}
    rows = {
        case: _numbers(path, case, {head: str(row.get(head, "")) for head in heads}, heads, "")
        for case, row in values.items()
    }
    return rows, {name: unit for name, unit in heads.values() if unit}


def split_cases(
    cases: Sequence[CaseFile], train: Share, test: Share, seed: int
) -> tuple[list[CaseFile], list[CaseFile]]:
    """Those to learn from and those to test on; numbers and fractions are drawn with the seed."""
    tested = _matching(cases, test) if isinstance(test, tuple) else None
    learned = _matching(cases, train) if isinstance(train, tuple) else None
    taken = {case.name for case in [*(tested or []), *(learned or [])]}
    if tested and learned and (both := {case.name for case in tested} & {case.name for case in learned}):
        raise UserError(f"data.train and data.test both match {sorted(both)[0]!r}; a case is for one of them")
    free = [case for case in cases if case.name not in taken]
    order = numpy_generator(seed).permutation(len(free))
    drawn = [free[i] for i in order]
    if tested is None:
        assert not isinstance(test, tuple)
        count = count_of(test, len(cases))
        tested, drawn = drawn[:count], drawn[count:]
    if learned is None:
        assert not isinstance(train, tuple)
        learned = drawn[: count_of(train, len(drawn))]
    for what, part in (("train", learned), ("test", tested)):
        if not part:
            raise UserError(
                f"data.{what} leaves no case of {len(cases)}; take more of them, or other patterns"
            )
    for what, share, part in (("train", train, learned), ("test", test, tested)):
        if isinstance(share, int) and len(part) < share:
            raise UserError(
                f"data.{what}={share}, but only {len(part)} of {len(cases)} cases are left for it"
            )
    return sorted(learned, key=_name), sorted(tested, key=_name)


def count_of(share: int | float, total: int) -> int:
    """A number of cases, or a fraction of them."""
    return share if isinstance(share, int) else max(1, round(share * total))


def _matching(cases: Iterable[CaseFile], patterns: Iterable[str]) -> list[CaseFile]:
    wanted = list(patterns)
    return [
        case
        for case in cases
        if any(fnmatch(case.name, pattern) or fnmatch(case.path.name, pattern) for pattern in wanted)
    ]


def _name(case: CaseFile) -> str:
    return case.name
