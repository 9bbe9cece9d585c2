"""`linearno export`: a run as one file for other programs."""

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
    format: Annotated[FormatName, typer.Option(help="onnx: an ONNX graph; torch: a program of torch.export")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=".onnx or .pt2; RUN/model.onnx or .pt2 by default")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="largest difference from the model, as a share of the largest value")
    ] = TOLERANCE,
    imports: ImportOption = None,
) -> None:
    """Write a trained model as one file that runs without linearno, and print three lines that run it.

    The file takes and gives physical units: scaling is inside. Each field is a tensor of that name, (batch,
    points), and `coords` is (batch, points, axes), for any batch and any number of points. A model tied to a
    grid keeps it, and only the batch is free. One that completes fields takes observations and `points`, one
    that is told the time takes `time`, and of one that marches in time the file is a single step.

    Before it is kept the file is asked beside the model at three sizes: an ONNX file with onnxruntime, where
    that is installed.

    Example:  linearno export runs/darcy-linearno --format onnx -o darcy.onnx

    For torch alone:  linearno export runs/elasticity-linearno --format torch -o stress.pt2
    """
    with user_errors():
        import_definitions(imports or [])
        path = out or run / f"model{FORMATS[format].suffix}"
        _say(export_run(run, path, format.value, tolerance=tolerance), tolerance)


def _say(made: Exported, tolerance: float) -> None:
    if made.difference is None:
        checked = "not checked: onnxruntime is not installed"
    else:
        checked = f"checked at three sizes: differs by {made.difference:.2g} of the largest value at most"
        checked += f" ({tolerance:g} is allowed)"
    lines = [
        f"{made.path}  {made.bytes / 1e6:.2g} MB, {checked}",
        f"takes  {', '.join(map(str, made.inputs))}",
        f"gives  {', '.join(map(str, made.outputs))}",
        *made.notes,
        "",
        *made.usage,
    ]
    for line in lines:  # whole, to be copied
        console.print(line, soft_wrap=True, markup=False, highlight=False)
