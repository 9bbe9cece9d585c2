"""Tables of the parameters of cases: `.csv`, `.xlsx` and `.json`, found in the folder or named."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError, require
from linearno.core.optional_deps import require_extra
from linearno.meshes.reader.array_files import AXES
from linearno.meshes.reader.mesh import CaseFile, split_unit

SUFFIXES = (".csv", ".xlsx", ".json")
TABLES = ("cases.csv", "cases.json", "cases.xlsx", "parameters.csv", "parameters.xlsx", "parameters.json")
KEYS = ("case", "file", "name", "folder", "simulation", "id", "run")  # column names of the case names
MAX_LEVELS = 3  # folders above a case that may hold its table, or whose names a row may name
MAX_LISTED = 5
TRAILING_NUMBER = re.compile(r"(\d+)$")

Cells = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Numbers of cases.

    Args:
        rows: numbers by name, by case: its name, file name, stem, or the name of a folder that it is in.
        units: unit of each number.
        path: file of the table; None without a table.
        text_columns: columns left out because they hold no numbers.
    """

    rows: Mapping[str, Mapping[str, float]]
    units: Mapping[str, str]
    path: Path | None = None
    text_columns: tuple[str, ...] = ()
    _index: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {_normal(key): key for key in self.rows})

    def row_of(self, case: CaseFile) -> str | None:
        """Key of the row of a case; None if it has none."""
        for key in keys_of(case):
            if (found := self._index.get(_normal(key))) is not None:
                return found
        if self.rows and all(key.strip().isdecimal() for key in self.rows):  # 7 names case_07
            numbers = {int(key): key for key in self.rows}
            for key in keys_of(case):
                if (match := TRAILING_NUMBER.search(key)) is not None and int(match[1]) in numbers:
                    return numbers[int(match[1])]
        return None

    def of(self, case: CaseFile) -> Mapping[str, float]:
        """Numbers of a case; empty if it has no row."""
        key = self.row_of(case)
        return {} if key is None else self.rows[key]

    def mismatches(self, cases: Sequence[CaseFile]) -> list[str]:
        """Messages about rows that name no case, and cases without a row."""
        if self.path is None:
            return []
        matched = {case.name: self.row_of(case) for case in cases}
        without = [name for name, row in matched.items() if row is None]
        unused = [key for key in self.rows if key not in matched.values()]
        lines = []
        if unused:
            lines.append(f"{len(unused)} of {len(self.rows)} rows match no case: {_listed(unused)}")
        if without:
            lines.append(f"{len(without)} of {len(cases)} cases have no row: {_listed(without)}")
        if self.text_columns:
            lines.append(f"columns of text are left out: {_listed(self.text_columns)}")
        return [f"{self.path}: {line}" for line in lines]


def keys_of(case: CaseFile) -> list[str]:
    """Texts by which a row may name a case: its name, file and stem, then the folders that it is in."""
    path = case.path
    parts = [case.simulation, case.name, path.name, path.stem, path.name.partition(".")[0]]
    parts += reversed(case.simulation.split("/"))
    parts += [folder.name for folder in list(path.absolute().parents)[:MAX_LEVELS]]
    return [part for part in dict.fromkeys(parts) if part]


def _normal(key: str) -> str:
    return key.strip().strip("/").removeprefix("./").casefold()


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names) - MAX_LISTED} more)" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def read_table(folder: Path, cases: Sequence[CaseFile] = (), named: Path | None = None) -> Table:
    """The table of the cases in a folder; an empty table if there is none.

    Tables with the names in `TABLES` go first; without one, the table in the folder or the one above it
    whose rows name the most cases. A table must name at least one case.

    Args:
        folder: folder of the cases.
        cases: its cases.
        named: file of the table, which must exist.
    """
    if named is not None:
        table = _read(require(named, how="give the file of the parameters"), cases)
        if cases and not any(table.of(case) for case in cases):
            raise UserError(
                f"{named}: none of its {len(table.rows)} rows names a case; rows: "
                f"{_listed(list(table.rows))}; cases: {_listed([case.name for case in cases])}"
            )
        return table
    for name in TABLES:
        if (folder / name).is_file():
            return _read(folder / name, cases)
    best, most = Table({}, {}), 0
    for path in _candidates(folder) if cases else ():
        try:
            table = _read(path, cases)
        except UserError:  # some other file, since nobody named it
            continue
        count = sum(bool(table.of(case)) for case in cases)
        if count > most:
            best, most = table, count
    return best


def read_table_of(file: CaseFile, named: Path | None = None) -> Table:
    """The table with the row of one case, from the folders that it is in."""
    if named is not None:
        return read_table(file.path.parent, [file], named)
    found = Table({}, {})
    for folder in list(file.path.absolute().parents)[:MAX_LEVELS]:
        table = read_table(folder, [file])
        if table.of(file):
            return table
        found = table if found.path is None else found
    return found


def _candidates(folder: Path) -> list[Path]:
    return [
        path
        for place in (folder, folder.absolute().parent)
        for path in sorted(place.glob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith((".", "~"))
        if path.suffix.lower() != ".csv" or not is_point_table(path)
    ]


def is_point_table(path: Path) -> bool:
    """Whether a `.csv` file has coordinates, and so is a case and no table of parameters."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(10**5)
    except (OSError, UnicodeDecodeError):
        return False
    names = {split_unit(name.strip().strip('"'))[0].lower() for name in re.split("[,;\t]", head)}
    return len(names & set(AXES)) >= 2 or any(f"points:{k}" in names for k in range(2))


def _read(path: Path, cases: Sequence[CaseFile]) -> Table:
    suffix = path.suffix.lower()
    if suffix == ".json":
        rows = _json_rows(path)
    else:
        rows = _by_case(path, _xlsx_cells(path) if suffix == ".xlsx" else _csv_cells(path), cases)
    heads = list(dict.fromkeys(head for cells in rows.values() for head in cells))
    texts = {head for head in heads if len(rows) > 1 and _is_text([row.get(head) for row in rows.values()])}
    units: dict[str, str] = {}
    numbers: dict[str, dict[str, float]] = {}
    for case, cells in rows.items():
        numbers[case] = {}
        for head, text in cells.items():
            if head in texts:
                continue
            name, unit = split_unit(head.strip())
            if unit:
                units[name] = unit
            if name and text is not None and str(text).strip():
                numbers[case][name] = _number(text, f"{path}: {name} of {case}")
    return Table(numbers, units, path, tuple(split_unit(head.strip())[0] for head in heads if head in texts))


def _is_text(cells: Sequence[Any]) -> bool:
    """Whether no cell is a number, and one is text."""
    given = [str(cell).strip() for cell in cells if cell is not None and str(cell).strip()]
    return bool(given) and not any(_parsed(cell) is not None for cell in given)


def _csv_cells(path: Path) -> list[Cells]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        mark = max(",;\t", key=head.count)
        rows = list(csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="", delimiter=mark))
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a table; expected comma-separated values") from None
    if mark == ";":  # with a decimal comma
        rows = [{head: _decimal_point(cell) for head, cell in row.items()} for row in rows]
    return rows


def _decimal_point(cell: Any) -> Any:
    return (
        re.sub(r"^\s*([-+]?\d+),(\d+([eE][-+]?\d+)?)\s*$", r"\1.\2", cell) if isinstance(cell, str) else cell
    )


def _xlsx_cells(path: Path) -> list[Cells]:
    """Rows of the first sheet of a workbook."""
    require_extra("openpyxl", "mesh")
    import openpyxl

    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        rows = [list(row) for row in sheet.iter_rows(values_only=True)]
    except Exception as error:  # a damaged workbook makes the library raise almost anything
        raise UserError(f"{path} is no workbook ({' '.join(str(error).split())[:100]})") from None
    rows = [row for row in rows if any(cell is not None for cell in row)]
    heads = [str(cell) if cell is not None else "" for cell in rows[0]] if rows else []
    return [dict(zip(heads, row, strict=True)) for row in rows[1:]]


def _by_case(path: Path, rows: list[Cells], cases: Sequence[CaseFile]) -> dict[str, Cells]:
    """Rows by the name of their case, from the column whose cells name the most cases."""
    heads = list(rows[0]) if rows else []
    key = next((head for head in heads if split_unit(head.strip())[0].lower() in KEYS), None)
    texts = {head: [_key_text(row.get(head)) for row in rows] for head in heads if head}
    known = {_normal(text) for case in cases for text in keys_of(case)}
    counts = {head: len(known & set(map(_normal, column))) for head, column in texts.items()}
    if not any(counts.values()):  # numbers of cases, such as 7 for case_07
        counts = {head: _numbered(column, cases) for head, column in texts.items() if key in (None, head)}
    if counts and max(counts.values()) > counts.get(key or "", 0):
        key = max(counts, key=lambda head: counts[head])
    if key is None:
        raise UserError(f"{path}: expected a column {' or '.join(KEYS[:3])} that names the cases")
    found: dict[str, Cells] = {}
    for row in rows:
        name = _key_text(row.pop(key))
        if name in found:
            raise UserError(f"{path}: {name!r} has two rows; expected one for each case")
        if name:
            found[name] = row
    return found


def _numbered(texts: list[str], cases: Sequence[CaseFile]) -> int:
    """Number of cases that a column of different whole numbers names."""
    if len(set(texts)) < len(texts):
        return 0
    table = Table({text: {} for text in texts if text}, {})
    return len({row for case in cases if (row := table.row_of(case)) is not None})


def _key_text(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def _json_rows(path: Path) -> dict[str, Cells]:
    how = 'expected {"case": {"name": number}}'
    values = read_json(path, how=how)
    if isinstance(values, list) and values and all(isinstance(row, dict) for row in values):
        return _by_case(path, [dict(row) for row in values], ())
    if not isinstance(values, dict) or not all(isinstance(row, dict) for row in values.values()):
        raise UserError(f"{path}: {how}")
    return values


def _parsed(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _number(text: Any, what: str) -> float:
    number = _parsed(text)
    if number is None:
        raise UserError(f"{what} is {text!r}, expected a number")
    if not np.isfinite(number):
        raise UserError(f"{what} is {text}, expected a finite number")
    return number
