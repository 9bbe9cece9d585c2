"""What `predict` and `query` do with mesh files: one, several, or a folder of them."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, progress_bar, user_errors
from linearno.core.atomic_io import writable_folder, write_text
from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.data.array_io import read_input_arrays, read_points
from linearno.inference.bundle import load
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import case_file, find_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader
from linearno.models import import_definitions
from linearno.on_meshes import (
    Answer,
    MeshModel,
    ending_for,
    require_writable,
    write_summary,
)
from linearno.run_folder import open_run
from linearno.training import Completion

SUMMARY = "summary.csv"

GivenOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER", help="a number of the case that the file does not tell; may be repeated"
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="take points in chunks that need no more than this, such as 8GB: for meshes of any size"
    ),
]
TolerateOption = Annotated[
    str,
    typer.Option(help="faults of meshes that do not matter: degenerate, duplicates, or both with a comma"),
]


def is_mesh_question(paths: Sequence[Path], run: Path) -> bool:
    """Whether these are meshes (folders of them, patterns), or arrays for a run that was trained on cases."""
    endings = {path.suffix.lower() for path in paths}
    if len(paths) > 1 or paths[0].is_dir() or endings & set(SUFFIXES) - {".npz"} or "*" in str(paths[0]):
        return True
    return (
        ".npz" in endings and (run / "config.yaml").exists() and isinstance(open_run(run).data, CasesConfig)
    )


@dataclass(frozen=True)
class How:
    """What else was said about a prediction."""

    given: Sequence[str]
    skip_bad: bool
    tolerate: str
    memory: str | None
    device: str

    @property
    def numbers(self) -> dict[str, float]:
        return _numbers(self.given)

    def open(self, run: Path) -> MeshModel:
        return MeshModel.open(run, self.device, tolerate=_names(self.tolerate), memory=self.memory)


def predict_meshes(run: Path, questions: Sequence[Path], out: Path | None, how: How) -> None:
    files, many = _files(questions)
    target = out or (Path("predictions") if many else Path(f"prediction{ending_for(files[0].path)}"))
    outs = _outs(files, target, many)
    for file, path in zip(files, outs, strict=True):
        require_writable(file.path, path)
    model = how.open(run)
    with Reader() as reader:
        if many:
            writable_folder(target)
            if not how.skip_bad:
                _check_all(model, reader, files, how.numbers)
        answers, skipped = _predict(model, reader, files, outs, how, many=many)
    if many:
        write_summary(target / SUMMARY, answers, skipped)
        _say_many(answers, skipped, target)
    else:
        names = ", ".join(model.fields(answers[0])[0])
        where = f"{answers[0].points:,} {model.config.location}"
        console.print(f"{outs[0]}: {names} at {where}{_errors(answers[0])}")


def _files(questions: Sequence[Path]) -> tuple[list[CaseFile], bool]:
    """The cases that were asked for, and whether they may be many."""
    files: list[CaseFile] = []
    for question in questions:
        if question.is_dir():
            files += find_cases(question)
        elif "*" in str(question) and not question.exists():
            found = sorted(Path().glob(str(question)) if not question.is_absolute() else _absolute(question))
            if not found:
                raise UserError(f"{question} matches no file")
            files += [case_file(path) for path in found]
        else:
            files.append(case_file(question))
    many = len(questions) > 1 or questions[0].is_dir() or "*" in str(questions[0])
    return files, many


def _absolute(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)
    return list(root.glob(str(pattern.relative_to(root))))


def _outs(files: Sequence[CaseFile], target: Path, many: bool) -> list[Path]:
    if not many:
        only = files[0]
        return [target / f"{only.path.stem}{ending_for(only.path)}" if target.is_dir() else target]
    if target.suffix.lower() in SUFFIXES:
        raise UserError(f"{target}: several meshes are answered in a folder; give one with -o")
    outs = [target / f"{file.name}{ending_for(file.path)}" for file in files]
    if len(set(outs)) < len(outs):
        raise UserError("two of the meshes have the same name; predict them one after the other")
    return outs


def _check_all(
    model: MeshModel, reader: Reader, files: Sequence[CaseFile], numbers: dict[str, float]
) -> None:
    """Before anything is written: every mesh can be read and has what the model needs."""
    bad = []
    with progress_bar("checking", len(files)) as advance:
        for file in files:
            try:
                model.source(file, numbers).read(reader, file, truth=False)
            except UserError as error:
                bad.append(str(error))
            advance(1)
    if bad:
        more = f" (and {len(bad) - 1} more of {len(files)} meshes)" if len(bad) > 1 else ""
        raise UserError(f"{bad[0]}{more}; --skip-bad goes on without")


def _predict(
    model: MeshModel, reader: Reader, files: Sequence[CaseFile], outs: Sequence[Path], how: How, *, many: bool
) -> tuple[list[Answer], dict[str, str]]:
    answers, skipped = [], {}
    with progress_bar("predicting", len(files)) as advance:
        for file, path in zip(files, outs, strict=True):
            try:
                answer = model.predict(reader, file, how.numbers)
                model.write(reader, answer, path)
                answers.append(answer)
            except UserError as error:
                if not (many and how.skip_bad):
                    raise
                skipped[file.name] = str(error)
                typer.echo(f"skipped: {error}", err=True)
            advance(1)
    if not answers:
        raise UserError(f"none of the {len(files)} meshes could be used")
    return answers, skipped


def _say_many(answers: Sequence[Answer], skipped: dict[str, str], target: Path) -> None:
    words = f"; {len(skipped)} skipped" if skipped else ""
    points = sum(answer.points for answer in answers)
    console.print(f"{len(answers)} meshes, {points:,} points → {target}{words}; summary: {target / SUMMARY}")
    for name in dict.fromkeys(name for answer in answers for name in answer.errors):
        known = [answer.errors[name] for answer in answers if name in answer.errors]
        console.print(f"  {name}: mean relative L2 {sum(known) / len(known):.4g} of {len(known)} with truth")


def _errors(answer: Answer) -> str:
    return "".join(f"; {name} relative L2 {error:.4g}" for name, error in answer.errors.items())


def query(
    run: RunArgument,
    mesh: Annotated[
        Path,
        typer.Argument(help="the case: a mesh file with the model's inputs, or observations in .npz or .mat"),
    ],
    points: Annotated[Path, typer.Option(help="where to ask: a .csv with x, y, z, an array file, or a mesh")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the .csv with the answers")] = Path("values.csv"),
    memory: MemoryOption = None,
    given: GivenOption = None,
    tolerate: TolerateOption = "",
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Ask a trained model about a case at any points, such as probes, in physical units.

    The mesh is taken in once, and then asked where you like: at more points, or fewer, than it has.

    A model that completes fields takes observations instead, an array file with `coords` and the values there
    (`u observed` or `u_observed` for Burgers), and points as a .csv with its coordinates, or `coords` again.

    Example:  linearno query runs/cases-linearno mesh.vtu --points probes.csv -o values.csv

    Observed: linearno query runs/burgers20-linearno seen.npz --points places.csv
    """
    with user_errors():
        import_definitions(imports or [])
        if out.suffix.lower() != ".csv":
            raise UserError(f"{out}: the answers are written as a .csv file")
        if completes(run):
            return _query_observed(run, mesh, points, out, device)
        file = case_file(mesh)
        probes = case_file(points)
        how = How(given or [], False, tolerate, memory, device)
        model = how.open(run)
        with Reader() as reader:
            places = reader.call(commands.points_of, probes)
            values = model.query(reader, file, places, how.numbers)
        axes = places[:, ["xyz".index(axis) for axis in model.config.coords]]
        spec = model.bundle.spec
        _write_values(out, model.config.coords, spec, axes.tolist(), values.tolist())
        console.print(f"{out}: {', '.join(spec.outputs)} at {len(values):,} points")


def completes(run: Path) -> bool:
    """Whether a run's model completes fields from observations."""
    return (run / "config.yaml").exists() and isinstance(open_run(run).task, Completion)


def _query_observed(run: Path, seen: Path, points: Path, out: Path, device: str) -> None:
    bundle = load(run, device)
    spec = bundle.asked.model_copy(update={"grid": None})
    places = read_points(points, spec)
    asked = read_input_arrays(seen, spec, need_coords=True)
    assert asked.coords is not None
    values = bundle.encode(asked.coords, asked.inputs).query(places)
    heads, rows = tuple(spec.coords), [[float(f"{x:.9g}") for x in place] for place in places.tolist()]
    if len(values) > 1:
        heads, rows = ("sample", *heads), [[i, *row] for i in range(len(values)) for row in rows]
    _write_values(out, heads, bundle.spec, rows, values.flatten(0, 1).tolist())
    of = f" of {len(values)} samples" if len(values) > 1 else ""
    console.print(f"{out}: {', '.join(bundle.spec.outputs)}{of} at {len(places):,} points")


def _write_values(
    out: Path,
    heads: Sequence[str],
    spec: FieldSpec,
    places: Sequence[Sequence[float | int]],  # with the sample's number where there are several
    values: list[list[float]],
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*heads, *(_head(name, spec.units) for name in spec.outputs)])
    for place, value in zip(places, values, strict=True):
        writer.writerow([*place, *(f"{number:.9g}" for number in value)])
    write_text(out, text.getvalue())


def _head(name: str, units: Mapping[str, str]) -> str:
    return f"{name} [{units[name]}]" if name in units else name


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(given: Sequence[str]) -> dict[str, float]:
    numbers = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            numbers[name.strip()] = float(value) if equals else float("nan")
        except ValueError:
            equals = ""
        if not equals:
            raise UserError(f"--given {text}: expected NAME=NUMBER, for example speed=30")
    return numbers
