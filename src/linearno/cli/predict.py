"""`linearno predict`: ask a trained model about new inputs."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.bundle import load
from linearno.cli.shared import DeviceOption, RunArgument, console, user_errors
from linearno.data.arrays import read_question, write_arrays
from linearno.training import Completion


def predict(
    run: RunArgument,
    question: Annotated[Path, typer.Argument(help=".npz or .mat with the model's input fields by name")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".npz or .mat for the answer")] = Path(
        "prediction.npz"
    ),
    steps: Annotated[
        int | None, typer.Option(min=1, help="frames to predict, of a model that marches in time")
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="take every n-th point a side of gridded inputs")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Predict the outputs for every sample of a file, in physical units.

    The file holds one array for each input field, named as in the training data (`coeff` for Darcy), on the
    model's grid: one sample or many. Models that take any mesh also need `coords`. A model that completes
    fields takes `coords` and the values there (`u observed` for Burgers), and answers on its whole grid.

    Example:  linearno predict runs/darcy-linearno new.npz -o answer.npz --stride 5

    In time:  linearno predict runs/ns-linearno first_frames.npz --steps 30
    """
    with user_errors():
        bundle = load(run, device)
        completes = isinstance(bundle.task, Completion)
        spec = bundle.asked.model_copy(update={"grid": None}) if completes else bundle.asked
        asked = read_question(question, spec, stride=stride, need_coords=completes or bundle.coords is None)
        answer = bundle.predict(asked.inputs, asked.coords, steps=steps)
        grid = bundle.spec.grid or answer.shape[1:2]
        shape = (*asked.leading[:-1], *grid) if completes else asked.leading
        names = bundle.spec.outputs if steps is None else [f"step{i + 1}" for i in range(answer.shape[-1])]
        fields = {name: answer[..., i].reshape(shape).numpy() for i, name in enumerate(names)}
        write_arrays(out, fields)
        shapes = ", ".join(f"{name} {field.shape}" for name, field in fields.items())
        console.print(f"{out}: {shapes}")
