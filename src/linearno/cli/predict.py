"""`linearno predict`: predict for new inputs in array files or on meshes."""

from pathlib import Path
from typing import Annotated, Any

import typer
from numpy import ndarray
from torch import Tensor

from linearno.cli.meshes import (
    GivenOption,
    MemoryOption,
    ParametersOption,
    StrictOption,
    TolerateOption,
    are_meshes,
    given_numbers,
    predict_meshes,
    tolerated_faults,
)
from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, progress_bar, user_errors
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.data.array_io import (
    InputArrays,
    read_arrays,
    read_input_arrays,
    require_array_file,
    write_arrays,
)
from linearno.inference.bundle import Bundle, load
from linearno.inference.on_meshes import MeshModel
from linearno.models import import_definitions
from linearno.training import Completion, Timed

MAX_POINTS_OF_EDGES = 2**24  # array files are read in single precision


def predict(
    run: RunArgument,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help=".npz or .mat file with the input fields by name; or meshes (.vtu, …) or a folder of meshes"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="file to write, in the format of the input; a folder for several"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="number of time steps of a rollout; as in training by default")
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="use every n-th grid point per side of the inputs")] = 1,
    memory: MemoryOption = None,
    given: GivenOption = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="skip meshes that cannot be used")] = False,
    tolerate: TolerateOption = "",
    parameters: ParametersOption = None,
    strict: StrictOption = False,
    std: Annotated[
        bool, typer.Option("--std", help="also write the standard deviation of each field, as NAME_std")
    ] = False,
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Predict the output fields for new samples, in physical units.

    Meshes: each mesh is written with its predicted fields, such as `p_predicted`, and with `p_error` if the
    mesh contains `p`. For several meshes, summary.csv lists points, seconds and errors. A mesh outside of the
    training cases (a parameter, the geometry, a missing patch) gets a warning, or is refused with --strict;
    each file has a number `novelty`, up to 1 inside of them. p_std and p_interval are written where the model
    has a standard deviation and calibrated intervals.

    Array files: one array for each input field, named as in the training data (`coeff` for Darcy), on the
    grid of the model, for one sample or several. Models for arbitrary meshes also need `coords`, and
    auxiliary fields such as `edges`.

    Field reconstruction: the file contains `coords` and values of the observations (`u_observed` for
    Burgers); the model predicts on its whole grid. Use `linearno query` for other points.

    Examples:

      linearno predict runs/darcy-linearno new.npz -o prediction.npz --stride 5
      linearno predict runs/cases-linearno mesh.vtu -o out.vtu
      linearno predict runs/cases-linearno new_meshes/ -o predicted/ --skip-bad
      linearno predict runs/ns-linearno first_frames.npz --steps 30
      linearno predict runs/elasticity-linearno big.npz --memory 8GB
      linearno predict runs/darcy-pod-gp new.npz --std
    """
    with user_errors():
        import_definitions(imports or [])
        bundle = load(run, device)
        meshes = are_meshes(inputs, bundle)
        if std and (meshes or steps is not None or memory is not None):
            raise UserError("--std is for array files, without --steps and --memory: leave it out")
        if meshes:
            faults = tolerated_faults(tolerate)
            model = MeshModel.of(bundle, tolerate=faults, memory=memory, parameters=parameters)
            return predict_meshes(model, inputs, out, given_numbers(given), skip_bad, strict)
        out = out or Path("prediction.npz")
        require_array_file(out)
        reconstructs = isinstance(bundle.task, Completion)
        spec = bundle.call_spec.model_copy(update={"grid": None}) if reconstructs else bundle.call_spec
        need_coords = reconstructs or bundle.coords is None
        arrays = read_input_arrays(inputs[0], spec, stride=stride, need_coords=need_coords)
        if std:
            outputs, deviations = bundle.predict_with_std(arrays.inputs, arrays.coords)
        else:
            outputs = _predict(bundle, arrays, _aux_arrays(inputs[0], bundle), steps, memory)
        grid = bundle.spec.grid or outputs.shape[1:2]
        shape = (*arrays.leading[:-1], *grid) if reconstructs else arrays.leading
        frame = bundle.task.frame or 1
        names = bundle.spec.outputs if steps is None else _step_names(outputs.shape[-1], frame)
        fields = {name: outputs[..., i].reshape(shape).numpy() for i, name in enumerate(names)}
        if std:
            fields |= {f"{n}_std": deviations[..., i].reshape(shape).numpy() for i, n in enumerate(names)}
        write_arrays(out, fields)
        shapes = ", ".join(f"{name} {field.shape}" for name, field in fields.items())
        console.print(f"{out}: {shapes}")


def _step_names(channels: int, frame: int) -> list[str]:
    """step1, step2, …, or step1_1, step1_2, step2_1, … if a frame has several channels."""
    return [f"step{i // frame + 1}" + (f"_{i % frame + 1}" if frame > 1 else "") for i in range(channels)]


def _aux_arrays(path: Path, bundle: Bundle) -> dict[str, ndarray]:
    """The auxiliary fields in the file."""
    arrays = read_arrays(path, list(bundle.spec.aux)) if bundle.spec.aux else {}
    for name, values in arrays.items():
        if bundle.spec.aux[name] == "edge" and values.size and values.max() >= MAX_POINTS_OF_EDGES:
            raise UserError(
                f"{path}: {name} contains {values.max():.0f}; array files support up to "
                f"{MAX_POINTS_OF_EDGES:,} points, use linearno.load(run).predict in Python"
            )
    return arrays


def _predict(
    bundle: Bundle, arrays: InputArrays, aux: dict[str, ndarray], steps: int | None, memory: str | None
) -> Tensor:
    """Predict; with a memory limit, also print the plan and expected duration and show progress."""
    options: dict[str, Any] = {"steps": steps, "aux": aux}
    if memory is None:
        return bundle.predict(arrays.inputs, arrays.coords, **options)
    streamer, task = bundle.streamer(memory), bundle.task
    points = next(part for part in (arrays.inputs, arrays.coords) if part is not None)
    samples = len(points) if points.dim() == 3 else 1
    frames = 1 if task.frame is None else steps or len(bundle.spec.outputs) // task.frame
    frames_per_call = frames if isinstance(task, Timed) else 1
    plan = streamer.plan(points.shape[-2], frames_per_call)
    calls = samples * frames // frames_per_call
    console.print(f"{plan}; about {format_duration(calls * streamer.seconds(plan))}")
    with progress_bar("points", calls * plan.passes * plan.points) as advance:
        last = 0

        def on_chunk(done: int, total: int) -> None:
            nonlocal last
            advance(done - last)
            last = done if done < total else 0

        return bundle.predict(arrays.inputs, arrays.coords, memory=memory, on_chunk=on_chunk, **options)
