"""`linearno predict`: ask a trained model about new inputs."""

from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from linearno.cli.meshes import (
    GivenOption,
    How,
    MemoryOption,
    TolerateOption,
    is_mesh_question,
    predict_meshes,
)
from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, progress_bar, user_errors
from linearno.core.durations import format_duration
from linearno.data.array_io import InputArrays, read_input_arrays, require_array_file, write_arrays
from linearno.inference.bundle import Bundle, load
from linearno.models import import_definitions
from linearno.training import Completion, Timed


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
    memory: MemoryOption = None,
    given: GivenOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="of many meshes, go on without those that cannot be used")
    ] = False,
    tolerate: TolerateOption = "",
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Predict the outputs for every sample of a file, in physical units.

    A mesh comes back with all that was in it, and the predicted fields beside: p_predicted, and p_error where
    the mesh has p itself. Of a folder of meshes a summary.csv tells points, seconds and errors.

    The file holds one array for each input field, named as in the training data (`coeff` for Darcy), on the
    model's grid: one sample or many. Models that take any mesh also need `coords`. A model that completes
    fields takes `coords` and the values there (`u observed` or `u_observed` for Burgers), and answers on its
    whole grid; `linearno query` asks it elsewhere.

    Example:  linearno predict runs/darcy-linearno new.npz -o answer.npz --stride 5

    A mesh:  linearno predict runs/cases-linearno mesh.vtu -o out.vtu

    A folder:  linearno predict runs/cases-linearno new_meshes/ -o predicted/ --skip-bad

    In time:  linearno predict runs/ns-linearno first_frames.npz --steps 30

    Large:    linearno predict runs/elasticity-linearno big.npz --memory 8GB
    """
    with user_errors():
        import_definitions(imports or [])
        if is_mesh_question(question, run):
            how = How(given or [], skip_bad, tolerate, memory, device)
            return predict_meshes(run, question, out, how)
        out = out or Path("prediction.npz")
        require_array_file(out)
        bundle = load(run, device)
        completes = isinstance(bundle.task, Completion)
        spec = bundle.asked.model_copy(update={"grid": None}) if completes else bundle.asked
        need = completes or bundle.coords is None
        asked = read_input_arrays(question[0], spec, stride=stride, need_coords=need)
        answer = _answer(bundle, asked, steps, memory)
        grid = bundle.spec.grid or answer.shape[1:2]
        shape = (*asked.leading[:-1], *grid) if completes else asked.leading
        frame = bundle.task.frame or 1
        names = bundle.spec.outputs if steps is None else _step_names(answer.shape[-1], frame)
        fields = {name: answer[..., i].reshape(shape).numpy() for i, name in enumerate(names)}
        write_arrays(out, fields)
        shapes = ", ".join(f"{name} {field.shape}" for name, field in fields.items())
        console.print(f"{out}: {shapes}")


def _step_names(channels: int, frame: int) -> list[str]:
    """step1, step2, …; of frames with several channels step1_1, step1_2, step2_1, …"""
    return [f"step{i // frame + 1}" + (f"_{i % frame + 1}" if frame > 1 else "") for i in range(channels)]


def _answer(bundle: Bundle, asked: InputArrays, steps: int | None, memory: str | None) -> Tensor:
    """The prediction; within a given memory with a word on what it takes, and a bar."""
    if memory is None:
        return bundle.predict(asked.inputs, asked.coords, steps=steps)
    streamer, task = bundle.streamer(memory), bundle.task
    points = next(part for part in (asked.inputs, asked.coords) if part is not None)
    samples = len(points) if points.dim() == 3 else 1
    frames = 1 if task.frame is None else steps or len(bundle.spec.outputs) // task.frame
    at_once = frames if isinstance(task, Timed) else 1
    plan = streamer.plan(points.shape[-2], at_once)
    calls = samples * frames // at_once
    console.print(f"{plan}; about {format_duration(calls * streamer.seconds(plan))}")
    with progress_bar("points", calls * plan.passes * plan.points) as advance:
        last = 0

        def on_chunk(done: int, total: int) -> None:
            nonlocal last
            advance(done - last)
            last = done if done < total else 0

        return bundle.predict(asked.inputs, asked.coords, steps=steps, memory=memory, on_chunk=on_chunk)
