"""`linearno predict` on mesh files: one mesh, several, or a folder."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import console, progress_bar
from linearno.core.atomic_io import writable_folder, write_text
from linearno.core.errors import UserError
from linearno.inference.bundle import Bundle
from linearno.inference.on_meshes import MeshModel, MeshPrediction, output_suffix, require_writable
from linearno.meshes.discover import case_file, find_cases, is_simulation
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader.vtk_files import CASE_PREFIX
from linearno.meshes.reader_process import Reader

SUMMARY = "summary.csv"

GivenOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="value of a case parameter that the file lacks; repeatable"),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="memory limit, such as 8GB: process large meshes in chunks of points"),
]
ParametersOption = Annotated[
    Path | None,
    typer.Option(help="table of the parameters of the meshes: .csv, .xlsx or .json; found by default"),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="refuse meshes and points outside of the training cases")
]
TolerateOption = Annotated[
    str,
    typer.Option(
        metavar="FAULTS",
        help="mesh faults to accept, comma-separated: degenerate (cells), duplicates (points)",
    ),
]


def are_meshes(paths: Sequence[Path], bundle: Bundle) -> bool:
    """Whether the paths are meshes, folders of meshes or patterns, and not array files."""
    suffixes = {path.suffix.lower() for path in paths}
    if len(paths) > 1 or paths[0].is_dir() or suffixes & set(SUFFIXES) - {".npz"} or "*" in str(paths[0]):
        return True
    return ".npz" in suffixes and bundle.mesh_fields is not None


def predict_meshes(
    model: MeshModel,
    paths: Sequence[Path],
    out: Path | None,
    given: Mapping[str, float],
    skip_bad: bool,
    strict: bool = False,
) -> None:
    """Predict on one mesh and write a file, or on several and write a folder with a summary.

    Args:
        model: the surrogate with the fields of its meshes.
        paths: meshes, folders or patterns.
        out: file for one mesh, folder for several; a default name if None.
        given: values of case parameters that the files lack.
        skip_bad: skip meshes that cannot be used.
        strict: refuse meshes outside of the training cases; with `skip_bad` skip them.
    """
    folder = len(paths) == 1 and paths[0].is_dir() and not is_simulation(paths[0])
    many = len(paths) > 1 or folder or "*" in str(paths[0])
    files = [file for path in paths for file in _cases(path)]
    target = out or Path("predictions" if many else f"prediction{output_suffix(files[0].path)}")
    outs = _outputs(files, target, many)
    for file, path in zip(files, outs, strict=True):
        require_writable(file.path, path)
    if not many:
        with Reader() as reader:
            prediction = model.predict(reader, files[0], given)
            model.report(prediction.case, strict=strict)
            model.write(reader, prediction, outs[0])
        fields = [name for name in model.arrays(prediction) if not name.startswith(CASE_PREFIX)]
        names, points = ", ".join(fields), len(prediction.values)
        errors = "".join(f"; {name} relative L2 {error:.4g}" for name, error in prediction.errors.items())
        novelty = "" if prediction.novelty is None else f"; novelty {prediction.novelty:.3g}"
        errors += "".join(f"; {name} {value:.5g}" for name, value in model.quantities(prediction).items())
        console.print(f"{outs[0]}: {names} at {points:,} {model.fields.location}{errors}{novelty}")
        return
    writable_folder(target)
    with Reader() as reader:
        if not skip_bad:
            _require_readable(model, reader, files, given, strict)
        pairs = list(zip(files, outs, strict=True))
        done, skipped = _predict_all(model, reader, pairs, given, skip_bad, strict)
    write_text(target / SUMMARY, _summary_csv(model, done, skipped))
    _print_summary(done, skipped, target)


def _cases(path: Path) -> list[CaseFile]:
    """The case files of a mesh, a folder or a pattern."""
    if path.is_dir():
        return find_cases(path)
    if "*" not in str(path) or path.exists():
        return [case_file(path)]
    root = Path(path.anchor)
    found = sorted(root.glob(str(path.relative_to(root))))
    if not found:
        raise UserError(f"{path} matches no file; check the pattern")
    return [case_file(each) for each in found]


def _outputs(files: Sequence[CaseFile], target: Path, many: bool) -> list[Path]:
    """The file to write for each mesh."""
    if not many:
        name = f"{files[0].path.stem}{output_suffix(files[0].path)}"
        return [target / name if target.is_dir() else target]
    if target.suffix.lower() in SUFFIXES:
        raise UserError(f"{target}: expected a folder for the predictions of several meshes, got a file name")
    outs = [target / f"{file.name}{output_suffix(file.path)}" for file in files]
    if len(set(outs)) < len(outs):
        raise UserError("two of the meshes have the same name; predict them in separate commands")
    return outs


def _require_readable(
    model: MeshModel, reader: Reader, files: Sequence[CaseFile], given: Mapping[str, float], strict: bool
) -> None:
    """Raise before anything is written if a mesh cannot be read or lacks inputs of the model."""
    bad = []
    with progress_bar("checking", len(files)) as advance:
        for file in files:
            try:
                case = model.read(reader, file, given)
                if strict:
                    model.report(case, strict=True)
            except UserError as error:
                bad.append(str(error))
            advance(1)
    if bad:
        more = f" (and {len(bad) - 1} more of {len(files)} meshes)" if len(bad) > 1 else ""
        raise UserError(f"{bad[0]}{more}; add --skip-bad to skip such meshes")


def _predict_all(
    model: MeshModel,
    reader: Reader,
    pairs: Sequence[tuple[CaseFile, Path]],
    given: Mapping[str, float],
    skip_bad: bool,
    strict: bool,
) -> tuple[list[MeshPrediction], dict[str, str]]:
    """Predict and write all (mesh, output) pairs; return predictions, and why meshes were skipped by name."""
    done, skipped = [], {}
    with progress_bar("predicting", len(pairs)) as advance:
        for file, out in pairs:
            try:
                prediction = model.predict(reader, file, given)
                model.report(prediction.case, strict=strict)
                model.write(reader, prediction, out)
                done.append(prediction)
            except UserError as error:
                if not skip_bad:
                    raise
                skipped[file.name] = str(error)
                typer.echo(f"skipped: {error}", err=True)
            advance(1)
    if not done:
        raise UserError(f"none of the {len(pairs)} meshes could be used")
    return done, skipped


def _fields_with_error(done: Sequence[MeshPrediction]) -> list[str]:
    """Names of the predicted fields whose truth some mesh contains."""
    return list(dict.fromkeys(name for prediction in done for name in prediction.errors))


def _summary_csv(model: MeshModel, done: Sequence[MeshPrediction], skipped: Mapping[str, str]) -> str:
    """CSV text with points, seconds and errors of each case."""
    text, names = io.StringIO(), _fields_with_error(done)
    writer = csv.writer(text, lineterminator="\n")
    heads, numbers = [f"relative_l2_{name}" for name in names], list(model.fields.quantities)
    writer.writerow(["case", "points", "seconds", *heads, *numbers, "novelty", "skipped"])
    for one in done:
        cells = [f"{one.errors[name]:.6g}" if name in one.errors else "" for name in names]
        cells += [f"{value:.9g}" for value in model.quantities(one).values()]
        novelty = "" if one.novelty is None else f"{one.novelty:.4g}"
        writer.writerow([one.case.file.name, len(one.values), f"{one.seconds:.4g}", *cells, novelty, ""])
    for name, reason in skipped.items():
        writer.writerow([name, "", "", *("" for _ in [*names, *numbers]), "", reason])
    return text.getvalue()


def _print_summary(done: Sequence[MeshPrediction], skipped: Mapping[str, str], target: Path) -> None:
    points = sum(len(prediction.values) for prediction in done)
    note = f"; {len(skipped)} skipped" if skipped else ""
    console.print(f"{len(done)} meshes, {points:,} points → {target}{note}; summary: {target / SUMMARY}")
    for name in _fields_with_error(done):
        known = [prediction.errors[name] for prediction in done if name in prediction.errors]
        mean = sum(known) / len(known)
        console.print(f"  {name}: mean relative L2 {mean:.4g} over {len(known)} meshes with this field")


def tolerated_faults(text: str) -> list[str]:
    """Comma-separated names of mesh faults as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def given_numbers(given: Sequence[str] | None) -> dict[str, float]:
    """Parse the NAME=NUMBER values of --given."""
    numbers = {}
    for text in given or ():
        name, _, value = text.partition("=")
        try:
            numbers[name.strip()] = float(value)
        except ValueError:
            raise UserError(f"--given {text}: expected NAME=NUMBER, for example speed=30") from None
    return numbers
