"""`linearno query`: predict at arbitrary points of a case."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from linearno.cli.meshes import (
    GivenOption,
    MemoryOption,
    ParametersOption,
    StrictOption,
    TolerateOption,
    given_numbers,
    tolerated_faults,
)
from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, user_errors
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.data.array_io import read_input_arrays, read_points
from linearno.inference.bundle import Bundle, load
from linearno.inference.on_meshes import MeshModel
from linearno.meshes.discover import case_file, one_case
from linearno.meshes.reader import commands
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader_process import Reader
from linearno.models import import_definitions
from linearno.training import Completion


def query(
    run: RunArgument,
    mesh: Annotated[
        Path,
        typer.Argument(help="mesh with the input fields; or an .npz or .mat file with observations"),
    ],
    points: Annotated[
        Path, typer.Option(help="query points: .csv with columns x, y, z, array file, or mesh")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help=".csv file to write")] = Path("values.csv"),
    memory: MemoryOption = None,
    given: GivenOption = None,
    tolerate: TolerateOption = "",
    parameters: ParametersOption = None,
    strict: StrictOption = False,
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Predict at arbitrary points of a case, such as probes, in physical units.

    The model encodes the mesh once and is then evaluated at the query points, which need not belong to the
    mesh.

    Field reconstruction: instead of a mesh, give an array file with `coords` and values of the observations
    (`u_observed` for Burgers). The query points are a .csv with a column for each coordinate, or an array
    file with `coords`.

    Examples:

      linearno query runs/cases-linearno mesh.vtu --points probes.csv
      linearno query runs/burgers20-linearno seen.npz --points points.csv
    """
    with user_errors():
        import_definitions(imports or [])
        if out.suffix.lower() != ".csv":
            raise UserError(f"{out}: expected a name that ends in .csv")
        bundle = load(run, device)
        if isinstance(bundle.task, Completion):
            return _query_observations(bundle, mesh, points, out)
        faults = tolerated_faults(tolerate)
        model = MeshModel.of(bundle, tolerate=faults, memory=memory, parameters=parameters)
        with Reader() as reader:
            query_points = reader.call(commands.points_of, case_file(points))
            values = model.query(reader, one_case(mesh), query_points, given_numbers(given), strict=strict)
        coords = model.fields.coords
        rows = query_points[:, [AXES.index(axis) for axis in coords]].tolist()
        _write_values(out, coords, bundle.spec, rows, values.tolist())
        console.print(f"{out}: {', '.join(bundle.spec.outputs)} at {len(values):,} points")


def _query_observations(bundle: Bundle, observations: Path, points: Path, out: Path) -> None:
    """Reconstruct the fields of observed samples at the query points."""
    spec = bundle.call_spec.model_copy(update={"grid": None})
    query_points = read_points(points, spec)
    arrays = read_input_arrays(observations, spec, need_coords=True)
    assert arrays.coords is not None
    values = bundle.encode(arrays.coords, arrays.inputs).query(query_points)
    head, rows = tuple(spec.coords), [[float(f"{x:.9g}") for x in point] for point in query_points.tolist()]
    if len(values) > 1:
        head, rows = ("sample", *head), [[i, *row] for i in range(len(values)) for row in rows]
    _write_values(out, head, bundle.spec, rows, values.flatten(0, 1).tolist())
    of = f" of {len(values)} samples" if len(values) > 1 else ""
    console.print(f"{out}: {', '.join(bundle.spec.outputs)}{of} at {len(query_points):,} points")


def _write_values(
    out: Path, head: Sequence[str], spec: FieldSpec, rows: Sequence[Sequence[Any]], values: list[list[float]]
) -> None:
    """Write a .csv with the columns `head`, filled by `rows`, and a column for each output with its unit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    units = [f" [{spec.units[name]}]" if name in spec.units else "" for name in spec.outputs]
    writer.writerow([*head, *(name + unit for name, unit in zip(spec.outputs, units, strict=True))])
    for row, outputs in zip(rows, values, strict=True):
        writer.writerow([*row, *(f"{value:.9g}" for value in outputs)])
    write_text(out, text.getvalue())
