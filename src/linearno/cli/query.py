"""`linearno query`: predict at any points of a case."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from linearno.cli.meshes import GivenOption, MemoryOption, TolerateOption, given_numbers, tolerated
from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, user_errors
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.data.array_io import read_input_arrays, read_points
from linearno.inference.bundle import Bundle, load
from linearno.inference.on_meshes import MeshModel
from linearno.meshes.discover import case_file
from linearno.meshes.reader import commands
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader_process import Reader
from linearno.models import import_definitions
from linearno.training import Completion


def query(
    run: RunArgument,
    mesh: Annotated[
        Path,
        typer.Argument(help="the case: a mesh file with the model's inputs, or observations in .npz or .mat"),
    ],
    points: Annotated[Path, typer.Option(help="query points: a .csv with x, y, z, an array file, or a mesh")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the .csv to write")] = Path("values.csv"),
    memory: MemoryOption = None,
    given: GivenOption = None,
    tolerate: TolerateOption = "",
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Predict at any points of a case, such as probes, in physical units.

    The mesh is encoded once, and then queried at any points: more, or fewer, than it has.

    A model that reconstructs fields takes observations instead, an array file with `coords` and the values
    there (`u observed` or `u_observed` for Burgers), and points as a .csv with its coordinates, or `coords`.

    Example:  linearno query runs/cases-linearno mesh.vtu --points probes.csv -o values.csv

    Observed: linearno query runs/burgers20-linearno seen.npz --points points.csv
    """
    with user_errors():
        import_definitions(imports or [])
        if out.suffix.lower() != ".csv":
            raise UserError(f"{out}: values are written as a .csv file")
        bundle = load(run, device)
        if isinstance(bundle.task, Completion):
            return _query_observations(bundle, mesh, points, out)
        model = MeshModel.of(bundle, tolerate=tolerated(tolerate), memory=memory)
        with Reader() as reader:
            file, probes = case_file(mesh), case_file(points)
            found = reader.call(commands.points_of, probes)
            values = model.query(reader, file, found, given_numbers(given))
        coords = model.fields.coords
        rows = found[:, [AXES.index(axis) for axis in coords]].tolist()
        _write_values(out, coords, bundle.spec, rows, values.tolist())
        console.print(f"{out}: {', '.join(bundle.spec.outputs)} at {len(values):,} points")


def _query_observations(bundle: Bundle, observations: Path, points: Path, out: Path) -> None:
    spec = bundle.call_spec.model_copy(update={"grid": None})
    found = read_points(points, spec)
    arrays = read_input_arrays(observations, spec, need_coords=True)
    assert arrays.coords is not None
    values = bundle.encode(arrays.coords, arrays.inputs).query(found)
    heads, rows = tuple(spec.coords), [[float(f"{x:.9g}") for x in point] for point in found.tolist()]
    if len(values) > 1:
        heads, rows = ("sample", *heads), [[i, *row] for i in range(len(values)) for row in rows]
    _write_values(out, heads, bundle.spec, rows, values.flatten(0, 1).tolist())
    of = f" of {len(values)} samples" if len(values) > 1 else ""
    console.print(f"{out}: {', '.join(bundle.spec.outputs)}{of} at {len(found):,} points")


def _write_values(
    out: Path, heads: Sequence[str], spec: FieldSpec, rows: Sequence[Sequence[Any]], values: list[list[float]]
) -> None:
    """Write a table: `rows`, under `heads`, and the outputs of each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    units = [f" [{spec.units[name]}]" if name in spec.units else "" for name in spec.outputs]
    writer.writerow([*heads, *(name + unit for name, unit in zip(spec.outputs, units, strict=True))])
    for row, outputs in zip(rows, values, strict=True):
        writer.writerow([*row, *(f"{value:.9g}" for value in outputs)])
    write_text(out, text.getvalue())
