"""`linearno init`: look at a folder of simulations, and write down what could be learned from them."""

import os
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from linearno.cli.shared import console, progress_bar, user_errors
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError
from linearno.meshes.cases import skipped_lines
from linearno.meshes.config import CasesConfig
from linearno.meshes.dataset_yaml import dataset_text
from linearno.meshes.discover import Share, find_cases, read_table, split_cases
from linearno.meshes.infer_schema import (
    FolderSummary,
    InitOptions,
    infer_schema,
    notes_on,
    role_of,
    summarise_folder,
)
from linearno.meshes.python_source import is_callable_name, write_cases_of
from linearno.meshes.reader.commands import FieldSummary

NAMES = "names, separated by commas"


def init(
    cases: Annotated[
        str,
        typer.Argument(help="folder of .vtu, .vtk, .vtp, .stl, .csv, .npz, .h5 files; or module:function"),
    ],
    targets: Annotated[str | None, typer.Option(help=f"fields to predict: {NAMES}")] = None,
    inputs: Annotated[str | None, typer.Option(help=f"fields that the model is told: {NAMES}")] = None,
    globals_: Annotated[
        str | None, typer.Option("--globals", help=f"numbers of a whole case: {NAMES}")
    ] = None,
    derived: Annotated[
        str | None, typer.Option(help="distance, unsigned_distance, normals, curvature; '' for none")
    ] = None,
    test: Annotated[
        str, typer.Option(help="cases to test on: a fraction, a number, or patterns of file names")
    ] = "0.2",
    files: Annotated[str, typer.Option(help="pattern of the files that are cases")] = "**/*",
    out: Annotated[Path, typer.Option("--out", "-o", help="the file to write")] = Path("dataset.yaml"),
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="go on without cases that cannot be read")
    ] = False,
) -> None:
    """Look at a folder of simulations on meshes of any size, and write a dataset.yaml to train from.

    One file is one case. Numbers of a whole case (a speed, an angle) are found in its field data, in fields
    that are constant, or in a cases.csv with a column `case`. An .stl file of the same name is the surface of
    a case. A function that yields cases is called once, and its cases are kept as files.

    Example:  linearno init simulations/

    What to learn:  linearno init simulations/ --targets p,U --derived distance,normals

    And then:  linearno train dataset.yaml
    """
    with user_errors():
        if out.exists():
            raise UserError(f"{out} exists already; remove it, or choose another --out")
        root = Path(cases)
        if is_callable_name(cases):
            root = _write_cases(cases, out.parent / f"{out.stem}_cases")
        options = InitOptions(_list(targets), _list(inputs), _list(globals_), _list(derived), _share(test))
        summary = summarise(root, files, skip_bad)
        values = infer_schema(summary, options) | {"files": files, "skip_bad": skip_bad}
        config = CasesConfig.make(values | {"root": Path(os.path.relpath(root, out.parent))})
        split_cases(summary.files, config.train, config.test, config.seed)
        text = dataset_text(config, summary)
        assert CasesConfig.make(yaml.safe_load(text)) == config
        show(summary, config)
        write_text(out, text)
        console.print(f"written: {escape(str(out))}   next: linearno train {escape(str(out))}")


def summarise(root: Path, files: str, skip_bad: bool) -> FolderSummary:
    """What all cases hold; an error if one cannot be read and may not be skipped."""
    found = find_cases(root, files)
    table = read_table(root if root.is_dir() else root.parent)
    with progress_bar("reading", len(found)) as advance:
        summary = summarise_folder(found, table, advance)
    if (bad := summary.unreadable) and not skip_bad:
        more = f" (and {len(bad) - 1} more of {len(found)} cases)" if len(bad) > 1 else ""
        raise UserError(f"{bad[0].reason}{more}; repair or remove it, or add --skip-bad")
    for line in skipped_lines(bad):
        typer.echo(line, err=True)
    for fault in ("empty", "coordinates"):
        if fault in summary.faults:
            raise UserError(f"{summary.faults[fault][0]}; repair or remove it")
    if not summary.files:
        raise UserError(f"none of the {len(found)} cases in {root} can be read")
    return summary


def show(summary: FolderSummary, config: CasesConfig) -> None:
    """Print the size of the cases, a table of their fields, and the faults that are tolerated."""
    points = summary.points
    console.print(
        f"{len(summary.files)} cases of {points[0]:,} to {points[-1]:,} points, "
        f"in {len(summary.axes)} dimensions ({', '.join(summary.axes)})"
    )
    table = Table("field", "where", box=None, pad_edge=False)
    for column in ("numbers", "from", "to"):
        table.add_column(column, justify="right")
    for column in ("unit", "cases", "note", "is used as"):
        table.add_column(column)
    for field in summary.fields:
        table.add_row(*(escape(cell) for cell in _row(field, summary, config)))
    console.print(table)
    for fault, lines in summary.faults.items():
        more = f" (and {len(lines) - 1} more cases)" if len(lines) > 1 else ""
        typer.echo(f"note: {lines[0]}{more}; tolerated as {fault}", err=True)


def _row(field: FieldSummary, summary: FolderSummary, config: CasesConfig) -> list[str]:
    table = summary.table.path.name if summary.table.path else ""
    return [
        field.name,
        {"case": "the case", "table": table}.get(field.location, field.location),
        str(field.components),
        f"{min(field.low, default=0.0):.4g}",
        f"{max(field.high, default=0.0):.4g}",
        ", ".join(sorted(field.units)),
        str(field.cases),
        "; ".join(notes_on(field, summary)),
        role_of(field, config),
    ]


def _write_cases(function: str, folder: Path) -> Path:
    """Write the cases that a user's function yields as files."""
    if folder.exists():
        raise UserError(f"{folder}, the folder for the cases of {function}, exists already; remove it")
    with progress_bar(function, 0) as advance:
        paths = write_cases_of(function, folder, advance)
    console.print(f"{len(paths)} cases of {escape(function)} → {escape(str(folder))}")
    return folder


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _share(text: str) -> Share:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _list(text) or ()
