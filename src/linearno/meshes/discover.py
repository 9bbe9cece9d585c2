"""Find the cases in a folder, read the table of their numbers, split them into training and test cases."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError, require
from linearno.core.randomness import numpy_generator
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.reader.mesh import CaseFile, split_unit

TABLES = ("cases.csv", "cases.json")
KEYS = ("case", "file", "name")  # possible names of the column with the case names
SURFACE_SUFFIX = ".stl"
Share = int | float | tuple[str, ...]  # a number of cases, a fraction of them, or patterns of their names


def find_cases(root: Path, pattern: str = "**/*") -> list[CaseFile]:
    """Cases in a folder, sorted by name; or one case, if `root` is a file."""
    require(root, how="give a folder of cases, or one file")
    if root.is_file():
        return [case_file(root)]
    found = [path for path in sorted(root.glob(pattern)) if _is_case(path)]
    if not found:
        raise UserError(f"{root} holds no case ({pattern}); expected files of {', '.join(SUFFIXES)}")
    stems = {path.with_suffix("") for path in found if path.suffix.lower() != SURFACE_SUFFIX}
    cases = [
        case_file(path, root)
        for path in found
        if path.suffix.lower() != SURFACE_SUFFIX or path.with_suffix("") not in stems
    ]
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{root} holds {repeated!r} in several formats; choose one, as in files: '**/*.vtu'")
    return cases


def case_file(path: Path, root: Path | None = None) -> CaseFile:
    """Case of a file, named by its path relative to `root`."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: expected one of {', '.join(SUFFIXES)}, got {path.suffix or 'no suffix'!r}")
    require(path, how="give a mesh, or a file of arrays")
    name = path.relative_to(root or path.parent).with_suffix("").as_posix()
    surface = path.with_suffix(SURFACE_SUFFIX)
    has_surface = path.suffix.lower() != SURFACE_SUFFIX and surface.exists()
    return CaseFile(name, path, surface if has_surface else None)


def _is_case(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.is_file() and path.suffix.lower() in SUFFIXES and path.name not in TABLES and not hidden


@dataclass(frozen=True)
class Table:
    """Numbers of cases.

    Args:
        rows: numbers by name, by case: its name, file name or the stem of the file name.
        units: unit of each number.
        path: file of the table; None without a table.
    """

    rows: Mapping[str, Mapping[str, float]]
    units: Mapping[str, str]
    path: Path | None = None

    def of(self, case: CaseFile) -> Mapping[str, float]:
        """Numbers of a case; empty if it has no row."""
        for key in (case.name, case.path.name, case.path.stem):
            if key in self.rows:
                return self.rows[key]
        return {}


def read_table(folder: Path) -> Table:
    """Read `cases.csv` or `cases.json` in the folder; an empty table if neither exists."""
    path = next((folder / name for name in TABLES if (folder / name).exists()), None)
    if path is None:
        return Table({}, {})
    rows: dict[str, dict[str, float]] = {}
    units: dict[str, str] = {}
    for case, cells in (_json_rows(path) if path.suffix == ".json" else _csv_rows(path)).items():
        rows[case] = {}
        for head, text in cells.items():
            name, unit = split_unit(head.strip())
            if unit:
                units[name] = unit
            if str(text).strip():
                rows[case][name] = _number(text, f"{path}: {name} of {case}")
    return Table(rows, units, path)


def _csv_rows(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, restkey="", restval=""))
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a table; expected comma-separated values") from None
    key = next(
        (head for head in (rows[0] if rows else {}) if split_unit(head.strip())[0].lower() in KEYS), None
    )
    if key is None:
        raise UserError(f"{path}: expected a column {' or '.join(KEYS)} that names the cases")
    return {row.pop(key).strip(): row for row in rows}


def _json_rows(path: Path) -> dict[str, dict[str, Any]]:
    how = 'expected {"case": {"name": number}}'
    values = read_json(path, how=how)
    if not isinstance(values, dict) or not all(isinstance(row, dict) for row in values.values()):
        raise UserError(f"{path}: {how}")
    return values


def _number(text: Any, what: str) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        raise UserError(f"{what} is {text!r}, expected a number") from None
    if not np.isfinite(number):
        raise UserError(f"{what} is {text}, expected a finite number")
    return number


def split_cases(
    cases: Sequence[CaseFile], train: Share, test: Share, seed: int
) -> tuple[list[CaseFile], list[CaseFile]]:
    """Split cases into training and test cases; numbers and fractions are drawn with the seed."""
    matched = {
        what: _matching(cases, share) if isinstance(share, tuple) else []
        for what, share in (("train", train), ("test", test))
    }
    if both := set(matched["train"]) & set(matched["test"]):
        name = min(case.name for case in both)
        raise UserError(f"data.train and data.test both match {name!r}; a case is for one of them")
    free = [case for case in cases if case not in {*matched["train"], *matched["test"]}]
    drawn = [free[i] for i in numpy_generator(seed).permutation(len(free))]
    if not isinstance(test, tuple):
        count = count_of(test, len(cases))
        matched["test"], drawn = drawn[:count], drawn[count:]
    if not isinstance(train, tuple):
        matched["train"] = drawn[: count_of(train, len(drawn))]
    for what, part in matched.items():
        if not part:
            raise UserError(
                f"data.{what} leaves no case of {len(cases)}; take more of them, or other patterns"
            )
    for what, share in (("train", train), ("test", test)):
        if isinstance(share, int) and len(matched[what]) < share:
            raise UserError(
                f"data.{what}={share}, but only {len(matched[what])} of {len(cases)} cases are left for it"
            )
    by_name = attrgetter("name")
    return sorted(matched["train"], key=by_name), sorted(matched["test"], key=by_name)


def count_of(share: int | float, total: int) -> int:
    """Number of cases for a number or fraction of `total`."""
    return share if isinstance(share, int) else max(1, round(share * total))


def _matching(cases: Iterable[CaseFile], patterns: Sequence[str]) -> list[CaseFile]:
    return [
        case
        for case in cases
        if any(fnmatch(case.name, pattern) or fnmatch(case.path.name, pattern) for pattern in patterns)
    ]
