"""`linearno init`: write a dataset.yaml from the fields found in a folder of simulations."""

import os
from pathlib import Path
from typing import Annotated, get_args

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from linearno.cli.shared import console, progress_bar, user_errors
from linearno.core.atomic_io import write_text
from linearno.core.config import read_yaml
from linearno.core.errors import UserError
from linearno.meshes.cases import skipped_lines
from linearno.meshes.config import CasesConfig, read_dataset
from linearno.meshes.dataset_yaml import dataset_text
from linearno.meshes.discover import Frames, Share, find_cases, listed, split_cases, updated_split
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
from linearno.meshes.simulations import ALL_FILES
from linearno.meshes.tables import read_table

NAMES = "comma-separated names"


def init(
    cases: Annotated[
        str,
        typer.Argument(
            help="folder of simulations: OpenFOAM case folders, output of foamToVTK, .vtu, .vtm, .pvd, .frd, "
            ".cgns, EnSight, Exodus, .csv, .npz, …; or module:function, a function that yields cases"
        ),
    ],
    targets: Annotated[str | None, typer.Option(help=f"fields to predict: {NAMES}")] = None,
    inputs: Annotated[str | None, typer.Option(help=f"input fields of the model: {NAMES}")] = None,
    globals_: Annotated[
        str | None,
        typer.Option("--globals", help=f"input parameters with one value per case, such as speed: {NAMES}"),
    ] = None,
    derived: Annotated[
        str | None,
        typer.Option(
            help="input features from the geometry: distance, unsigned_distance, log_distance, normals, "
            "curvature, local_coords, fourier; '' for none"
        ),
    ] = None,
    test: Annotated[
        str, typer.Option(help="test cases: a fraction, a number, or patterns of file names")
    ] = "0.2",
    files: Annotated[str, typer.Option(help="pattern of the case files")] = ALL_FILES,
    parameters: Annotated[
        Path | None,
        typer.Option(help="table of the parameters of the cases: .csv, .xlsx or .json; found by default"),
    ] = None,
    frames: Annotated[
        str, typer.Option(help="times of each simulation: last, or all, as cases with the parameter time")
    ] = "last",
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write")] = Path("dataset.yaml"),
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="skip cases that cannot be read")] = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="CASES is a dataset.yaml: take new cases of its folder, keep the rest"),
    ] = False,
) -> None:
    """Inspect a folder of simulations on meshes of any size and write a dataset.yaml to train from.

    Each simulation is one case, with its boundary patches. Parameters of a case (a speed, an angle) are read
    from a table (cases.csv, parameters.xlsx, …) whose rows name cases or their folders, from field data or
    constant fields, or from OpenFOAM dictionaries. An .stl file with the name of a case is its surface. A
    Python function that yields cases is called once, and its cases are saved as files.

    Check the proposed targets, inputs and split in dataset.yaml, then run `linearno train dataset.yaml`.

    Examples:

      linearno init simulations/
      linearno init simulations/ --targets p,U --derived distance,normals
      linearno train dataset.yaml
      linearno init --update dataset.yaml
    """
    with user_errors():
        if update:
            chosen = (targets, inputs, globals_, derived, parameters)
            plain = (test, files, skip_bad) == ("0.2", ALL_FILES, False)
            if not plain or any(option is not None for option in chosen):
                raise UserError("--update keeps the choices of the dataset.yaml: edit them there")
            return update_dataset(Path(cases))
        if out.exists():
            raise UserError(f"{out} exists already; remove it, or choose another --out")
        root = Path(cases)
        if is_callable_name(cases):
            root = _write_generated_cases(cases, out.parent / f"{out.stem}_cases")
        options = InitOptions(
            targets=_split_names(targets),
            inputs=_split_names(inputs),
            globals=_split_names(globals_),
            derived=_split_names(derived),
            test=_parse_share(test),
        )
        if frames not in get_args(Frames):
            raise UserError(f"--frames {frames}: expected last or all")
        summary = summarise(root, files, skip_bad, parameters, "all" if frames == "all" else "last")
        values = infer_schema(summary, options) | {"files": files, "frames": frames, "skip_bad": skip_bad}
        paths = {"root": root, "parameters": parameters}
        values |= {name: Path(os.path.relpath(path, out.parent)) for name, path in paths.items() if path}
        values["cases"] = simulations(summary)
        config = CasesConfig.make(values)
        split_cases(summary.files, config.train, config.test, config.seed)
        text = dataset_text(config, summary)
        assert CasesConfig.make(yaml.safe_load(text)) == config
        print_summary(summary, config)
        if not config.globals and not config.inputs and summary.share_meshes:
            typer.echo(
                "note: the cases have the same mesh and no parameter that differs; give a table with "
                "--parameters, or expressions in the dataset.yaml",
                err=True,
            )
        write_text(out, text)
        console.print(f"written: {escape(str(out))}   next: linearno train {escape(str(out))}")


def update_dataset(path: Path) -> None:
    """Rewrite a dataset.yaml for the cases that its folder holds now; its other choices stay."""
    stored, config = read_yaml(path, CasesConfig), read_dataset(path)
    summary = summarise(config.root, config.files, config.skip_bad, config.parameters, config.frames)
    now, known = simulations(summary), stored.cases
    if not known:
        console.print("the file lists no cases: all that are there are taken as known before")
        known = now
    train, test = updated_split(summary.files, known, stored.train, stored.test, stored.seed)
    new = stored.model_copy(update={"cases": now, "train": train, "test": test})
    split_cases(summary.files, train, test, stored.seed)
    if missing := [name for name in config.targets if name not in {one.name for one in summary.fields}]:
        raise UserError(f"{path}: no case holds the target {missing[0]!r}")
    write_text(path, dataset_text(new, summary))
    for what, names in (("added", set(now) - set(known)), ("vanished", set(known) - set(now))):
        console.print(f"{what}: {escape(listed(sorted(names))) if names else 'none'}")
    name = escape(str(path))
    console.print(f"written: {name}   next: linearno train {name} --init-from RUN --out LARGER")


def simulations(summary: FolderSummary) -> tuple[str, ...]:
    """Names of all simulations of a folder, readable or not."""
    files = [*summary.files, *(case.file for case in summary.unreadable)]
    return tuple(sorted({file.simulation for file in files}))


def summarise(
    root: Path, files: str, skip_bad: bool, parameters: Path | None = None, frames: Frames = "last"
) -> FolderSummary:
    """Summarise the fields of all cases; an error if a case cannot be read and `skip_bad` is false."""
    found = find_cases(root, files, frames)
    table = read_table(root if root.is_dir() else root.parent, found, parameters)
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


def print_summary(summary: FolderSummary, config: CasesConfig) -> None:
    """Print the size of the cases, a table of their fields, and the tolerated mesh faults."""
    points = summary.points
    console.print(
        f"{len(summary.files)} cases of {points[0]:,} to {points[-1]:,} points "
        f"in {len(summary.axes)} dimensions ({', '.join(summary.axes)})"
    )
    if summary.thin:
        console.print(f"{summary.thin}: reduced to the plane {', '.join(summary.axes)}")
    if summary.patches:
        console.print(f"patches: {escape(', '.join(summary.patches))}")
    table = Table("field", "location", box=None, pad_edge=False)
    for column in ("components", "min", "max"):
        table.add_column(column, justify="right")
    for column in ("unit", "cases", "note", "used as"):
        table.add_column(column)
    for field in summary.fields:
        table.add_row(*(escape(cell) for cell in _row(field, summary, config)))
    console.print(table)
    for line in summary.notes:
        typer.echo(f"note: {line}", err=True)
    for fault, lines in summary.faults.items():
        more = f" (and {len(lines) - 1} more cases)" if len(lines) > 1 else ""
        typer.echo(f"note: {lines[0]}{more}; tolerated as {fault}", err=True)


def _row(field: FieldSummary, summary: FolderSummary, config: CasesConfig) -> list[str]:
    """The cells of a field in the table of `print_summary`."""
    table = summary.table.path.name if summary.table.path else ""
    return [
        field.name,
        {"case": "case", "table": table}.get(field.location, field.location),
        str(field.components),
        f"{min(field.low, default=0.0):.4g}",
        f"{max(field.high, default=0.0):.4g}",
        ", ".join(sorted(field.units)),
        str(field.cases),
        "; ".join(notes_on(field, summary)),
        role_of(field, config),
    ]


def _write_generated_cases(function: str, folder: Path) -> Path:
    """Write the cases that a user's function yields as files."""
    if folder.exists():
        raise UserError(f"{folder}, the folder for the cases of {function}, exists already; remove it")
    with progress_bar(function, 0) as advance:
        paths = write_cases_of(function, folder, advance)
    console.print(f"{len(paths)} cases of {escape(function)} → {escape(str(folder))}")
    return folder


def _split_names(text: str | None) -> tuple[str, ...] | None:
    """Comma-separated names as a tuple; None if the option is not given."""
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_share(text: str) -> Share:
    """A number of cases, a fraction of them, or file patterns."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _split_names(text) or ()
