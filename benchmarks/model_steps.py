"""Time a training step of every model at the sizes of its recipe: eager, captured, and with torch.compile."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.step import StepCase, our_step
from benchmarks.timing import Candidate, Results, TimingSettings, time_candidates
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.device import Precision, device_name, resolve_device, set_matmul_precision
from linearno.core.errors import UserError
from linearno.core.provenance import machine
from linearno.data import DATASETS, FieldSpec
from linearno.models import MODELS, self_fitting
from linearno.nn.protocol import capturable
from linearno.reproduce.records import Record, new_record, read_record, record_path, write_record
from linearno.run_config import recipe

SHAPES = ("darcy", "elasticity")
SCATTERED_POINTS = {"elasticity": 972}  # points of a sample without a grid
REFERENCE = "linearno"
RECORD_ID = "bench/models/step"


def model_steps(
    shape: Annotated[list[str] | None, typer.Option(help="darcy or elasticity; both by default")] = None,
    model: Annotated[list[str] | None, typer.Option(help="all by default; may be repeated")] = None,
    compile: Annotated[bool, typer.Option(help="also time with torch.compile")] = True,
    repeats: Annotated[int | None, typer.Option(min=1, help="timed calls in each round")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="start no model after this time")] = None,
    again: Annotated[bool, typer.Option(help="also time models that the record in --out has")] = False,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Time a training step of every model at the sizes, batch and precision of its recipes.

    "step" is the step as `linearno train` runs it, a CUDA graph for models that can be captured; "eager"
    launches every kernel from Python; "compiled" is the step with torch.compile. Models are timed one after
    another in one process, on random fields.

    With --out the record is written after every model. The same command continues it: models that the record
    has from this machine are not timed again.

    Examples:

      python -m benchmarks model-steps --model fno --model linearno
      python -m benchmarks model-steps --out results --minutes 8
    """
    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    with user_errors():
        where = resolve_device(device)
        default = TimingSettings.default(where)
        settings = TimingSettings(default.warmup, default.rounds, repeats or default.repeats)
        names = model or [name for name in MODELS if _is_built_in(name)]
        rows = {} if again else _rows_of_record(out, where)
        console.print(f"on {device_name(where)}")
        console.print(f"{'model':<18}{'shape':<12}{'step':>9}{'eager':>9}{'compiled':>10}  ms")
        for benchmark in shape or SHAPES:
            if benchmark not in SHAPES:
                raise UserError(f"no step of {benchmark!r}; choose one of {', '.join(SHAPES)}")
            for name in names:
                MODELS[name]  # an error with near misses
                if f"{benchmark}/{name}" in rows:
                    continue
                if time.monotonic() > until:
                    console.print("out of time: the same command continues")
                    return
                row = _time_model(benchmark, name, where, settings, compiled=compile)
                rows[f"{benchmark}/{name}"] = row
                console.print(_line(benchmark, name, row))
                if out is not None and _timed(rows):
                    write_record(out, _record(rows, where))
        if _timed(rows):
            keep_record(_record(rows, where), out)


def _rows_of_record(out: Path | None, device: torch.device) -> dict[str, dict[str, Any]]:
    """What the stored record has of this machine."""
    if out is None or not (path := record_path(out, RECORD_ID)).exists():
        return {}
    record = read_record(path)
    return dict(record.details["models"]) if record.machine == machine(device) else {}


def _timed(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median of the step of every model that has one, in ms."""
    steps = {name: row.get("times_ms", {}).get("step") for name, row in rows.items()}
    return {name: timing["median"] for name, timing in steps.items() if timing is not None}


def _is_built_in(name: str) -> bool:
    return MODELS[name].cls.__module__.startswith("linearno.models.")


def _time_model(
    benchmark: str, name: str, device: torch.device, settings: TimingSettings, *, compiled: bool
) -> dict[str, Any]:
    """Times of one model, or why there are none."""
    try:
        if self_fitting(name):
            raise UserError("fitted in closed form")
        case = step_case(benchmark, name)
        network = case.build(torch.device("cpu"))
    except UserError as error:
        return {"absent": str(error)}
    torch.compiler.reset()
    precision = case.training.precision
    captured = device.type == "cuda" and capturable(network) and case.training.capture
    builders: dict[str, Callable[[], Candidate]] = {
        "step": partial(_candidate, case, device, precision, capture=None, compiled=False),
        "compiled": partial(_candidate, case, device, precision, capture=None, compiled=True),
    }
    if captured:
        builders["eager"] = partial(_candidate, case, device, precision, capture=False, compiled=False)
    if not compiled:
        del builders["compiled"]
    results: Results = time_candidates(builders, device, settings)
    torch.cuda.empty_cache()
    return {
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "batch": case.training.batch,
        "precision": precision,
        "captured": captured,
        **results.as_dict(),
    }


def step_case(benchmark: str, name: str) -> StepCase:
    """The step of a model on a benchmark, as its recipe says."""
    config = recipe(benchmark, name)
    layout = DATASETS[benchmark].layout
    assert layout is not None
    if config.task.provides:
        raise UserError(f"the task {config.task.name} has no random fields here")
    sample = layout(config.data)
    spec: FieldSpec = sample.spec
    points = SCATTERED_POINTS[benchmark] if sample.coords is None else len(sample.coords)
    return StepCase(name, spec, points, config.model, config.training, config.recipe, task=config.task)


def _candidate(
    case: StepCase, device: torch.device, precision: Precision, *, capture: bool | None, compiled: bool
) -> Candidate:
    set_matmul_precision(precision)
    work = our_step(case, device, precision, capture=capture, compiled=compiled)
    return Candidate(work, precision, replay=capture is None and device.type == "cuda")


def _line(benchmark: str, name: str, row: dict[str, Any]) -> str:
    if "absent" in row and "times_ms" not in row:
        return f"{name:<18}{benchmark:<12}{row['absent']}"
    times = {kind: timing["median"] for kind, timing in row["times_ms"].items()}
    cells = [f"{times[kind]:.3f}" if kind in times else "" for kind in ("step", "eager", "compiled")]
    failures = "".join(f"  {kind}: {reason}" for kind, reason in row["absent"].items())
    return f"{name:<18}{benchmark:<12}{cells[0]:>9}{cells[1]:>9}{cells[2]:>10}{failures}"


def _record(rows: dict[str, dict[str, Any]], device: torch.device) -> Record:
    """The record of all models; its value is the step of LinearNO on the first shape, else the first step."""
    timed = _timed(rows)
    first = next((name for name in timed if name.endswith(f"/{REFERENCE}")), next(iter(timed)))
    others = {name.replace("/", " "): value for name, value in timed.items() if name != first}
    return new_record(
        RECORD_ID,
        timed[first],
        "ms",
        device=device,
        recipe=first,
        against=others,
        details={"models": rows},
    )
