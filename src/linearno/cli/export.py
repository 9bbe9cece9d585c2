"""`linearno export`: write a run as one ONNX or torch.export file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import ImportOption, RunArgument, console, user_errors
from linearno.inference.export import FORMATS, TOLERANCE, Exported, export_run
from linearno.models import import_definitions


class FormatName(StrEnum):
    onnx = "onnx"
    torch = "torch"


def export(
    run: RunArgument,
    format: Annotated[FormatName, typer.Option(help="onnx: ONNX graph; torch: torch.export program")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="file to write; RUN/model.onnx or RUN/model.pt2 by default"),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="largest allowed difference from the model, relative to the largest value"),
    ] = TOLERANCE,
    imports: ImportOption = None,
) -> None:
    """Export a trained model as one file that runs without linearno, and print Python code that runs it.

    Inputs and outputs are in physical units: the scaling is part of the file. Each field is a tensor (batch,
    points) with the name of the field; `coords` has the shape (batch, points, axes). Batch and points may
    have any size; a model on a fixed grid keeps its grid, and only the batch may vary.

    Further inputs: a field reconstruction takes the coordinates and values of the observations and the query
    points `points`; a time-conditioned model takes `time`. A rollout model is exported as one time step: feed
    its output back as input.

    Before the file is written, its outputs are compared with those of the model at three input sizes. For
    ONNX files this needs onnxruntime.

    Examples:

      linearno export runs/darcy-linearno --format onnx -o darcy.onnx
      linearno export runs/elasticity-linearno --format torch -o stress.pt2
    """
    with user_errors():
        import_definitions(imports or [])
        path = out or run / f"model{FORMATS[format].suffix}"
        _print_summary(export_run(run, path, format.value, tolerance=tolerance), tolerance)


def _print_summary(exported: Exported, tolerance: float) -> None:
    """Print the size, the result of the check, inputs and outputs, and code that runs the file."""
    if exported.difference is None:
        check = "not checked: onnxruntime is not installed"
    else:
        check = f"checked at three sizes: largest relative difference {exported.difference:.2g}"
        check += f" ({tolerance:g} is allowed)"
    lines = [
        f"{exported.path}  {exported.bytes / 1e6:.2g} MB, {check}",
        f"inputs   {', '.join(map(str, exported.inputs))}",
        f"outputs  {', '.join(map(str, exported.outputs))}",
        *exported.notes,
        "",
        *exported.usage,
    ]
    for line in lines:  # without line breaks, so that the code can be copied
        console.print(line, soft_wrap=True, markup=False, highlight=False)
