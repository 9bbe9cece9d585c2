"""`linearno predict`: ask a trained model about new inputs."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.bundle import load
from linearno.cli.meshes import GivenOption, TolerateOption, is_mesh_question, predict_meshes
from linearno.cli.shared import DeviceOption, RunArgument, console, user_errors
from linearno.data.arrays import read_question, write_arrays
from linearno.training import Completion


def predict(
    run: RunArgument,
    question: Annotated[
        list[Path],
        typer.Argument(
            help=".npz or .mat with the model's inputs by name; or meshes (.vtu, …), or a folder of them"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="file for the answer, of the kind of the question; of many a folder"
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="frames to predict, of a model that marches in time")
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="take every n-th point a side of gridded inputs")] = 1,
    given: GivenOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="of many meshes, go on without those that cannot be used")
    ] = False,
    tolerate: TolerateOption = "",
    device: DeviceOption = "auto",
) -> None:
    """Predict the outputs for every sample of a file, in physical units.

    A mesh comes back with all that was in it, and the predicted fields beside: p_predicted, and p_error where
    the mesh has p itself. Of a folder of meshes a summary.csv tells points, seconds and errors.

    The file holds one array for each input field, named as in the training data (`coeff` for Darcy), on the
    model's grid: one sample or many. Models that take any mesh also need `coords`. A model that completes
    fields takes `coords` and the values there (`u observed` for Burgers), and answers on its whole grid.

    Example:  linearno predict runs/darcy-linearno new.npz -o answer.npz --stride 5

    A mesh:  linearno predict runs/cases-linearno mesh.vtu -o out.vtu

    A folder:  linearno predict runs/cases-linearno new_meshes/ -o predicted/ --skip-bad

    In time:  linearno predict runs/ns-linearno first_frames.npz --steps 30
    """
    with user_errors():
        if is_mesh_question(question, run):
            faults = {"given": given or [], "skip_bad": skip_bad, "tolerate": tolerate}
            predict_meshes(run, question, out, **faults, device=device)  # type: ignore[arg-type]
            return
        bundle = load(run, device)
        completes = isinstance(bundle.task, Completion)
        spec = bundle.asked.model_copy(update={"grid": None}) if completes else bundle.asked
        asked = read_question(
            question[0], spec, stride=stride, need_coords=completes or bundle.coords is None
        )
        answer = bundle.predict(asked.inputs, asked.coords, steps=steps)
        grid = bundle.spec.grid or answer.shape[1:2]
        shape = (*asked.leading[:-1], *grid) if completes else asked.leading
        names = bundle.spec.outputs if steps is None else [f"step{i + 1}" for i in range(answer.shape[-1])]
        fields = {name: answer[..., i].reshape(shape).numpy() for i, name in enumerate(names)}
        out = out or Path("prediction.npz")
        write_arrays(out, fields)
        shapes = ", ".join(f"{name} {field.shape}" for name, field in fields.items())
        console.print(f"{out}: {shapes}")
