"""`linearno predict`: ask a trained model about new inputs."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.bundle import load
from linearno.cli.shared import DeviceOption, RunArgument, console, user_errors
from linearno.data.arrays import read_question, write_arrays


def predict(
    run: RunArgument,
    question: Annotated[Path, typer.Argument(help=".npz or .mat with the model's input fields by name")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".npz or .mat for the answer")] = Path(
        "prediction.npz"
    ),
    stride: Annotated[int, typer.Option(min=1, help="take every n-th point a side of gridded inputs")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Predict the outputs for every sample of a file, in physical units.

    The file holds one array for each input field, named as in the training data (`coeff` for Darcy), on the
    model's grid: one sample or many. Models that take any mesh also need `coords`.

    Example:  linearno predict runs/darcy-linearno new.npz -o answer.npz --stride 5
    """
    with user_errors():
        bundle = load(run, device)
        asked = read_question(question, bundle.spec, stride=stride, need_coords=bundle.coords is None)
        answer = bundle.predict(asked.inputs, asked.coords)
        fields = {name: asked.shape(answer[..., i]).numpy() for i, name in enumerate(bundle.spec.outputs)}
        write_arrays(out, fields)
        shapes = ", ".join(f"{name} {field.shape}" for name, field in fields.items())
        console.print(f"{out}: {shapes}")
