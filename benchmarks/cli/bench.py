"""Verbs that time a layer or a step, or train a recipe, and record the result."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from benchmarks.attention import SHAPES, bench_attention
from benchmarks.cli.shared import OutOption, SetOption, keep_record
from benchmarks.step import StepCase, bench_step
from benchmarks.times_table import times_table
from benchmarks.timing import TimingSettings, measure_ceilings
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.cli.train import exit_on_interrupt, open_recipe, run_with_bar
from linearno.core.config import override
from linearno.core.device import Precision, device_name, resolve_device
from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.metrics.cost import flops
from linearno.recipes import RECIPES
from linearno.reproduce.cost_table import build
from linearno.reproduce.paper_settings import BENCHMARKS, EXTRA_SHAPES, model_config
from linearno.reproduce.records import Record
from linearno.reproduce.run_records import record_of_run
from linearno.training import Rollout, Task, TrainingConfig

EXTRA_TRAINING = {  # training settings of shapes without a recipe
    "car": TrainingConfig(batch=1, clip=None),
    "million": TrainingConfig(batch=1, recompute=True, capture=False),
}
ROLLOUT_FRAMES = 10  # trained in one step


class Shape(StrEnum):
    darcy = "darcy"
    airfoil = "airfoil"
    elasticity = "elasticity"
    ns = "ns"
    pipe = "pipe"
    car = "car"
    million = "million"


DEFAULT_SHAPES = [shape for shape in Shape if shape != Shape.million]


class Arithmetic(StrEnum):
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


ShapeOption = Annotated[
    list[Shape] | None,
    typer.Option(
        "--shape",
        metavar="NAME",
        help="darcy, airfoil, elasticity, ns, pipe, car or million; may be repeated; default: the first six",
    ),
]
PrecisionOption = Annotated[
    list[Arithmetic] | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="bf16, tf32 or fp32; may be repeated; the record has the first; default: all on CUDA, else fp32",
    ),
]
CompileOption = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="also time torch.compile; by default on CUDA only"),
]
RepeatsOption = Annotated[
    int | None, typer.Option(min=1, help="timed calls in each of five rounds; 40 on CUDA, else 4")
]


def attention(
    shape: ShapeOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    compile: CompileOption = None,
    repeats: RepeatsOption = None,
) -> None:
    """Time one attention layer, forward and backward: LinearNO, plain PyTorch, torch.compile, PhysicsNeMo.

    All candidates run alternately in one process with the same inputs. On CUDA they also run as CUDA graphs,
    and memory is the peak allocation beyond the inputs. The record lists candidates that could not run.

    Example:

      python -m benchmarks attention --shape darcy --shape airfoil --out results
    """
    with user_errors():
        settings = BenchmarkOptions(device, precision, compile, repeats)
        _bench(shape, lambda name: bench_attention(name, SHAPES[name], **settings.options), settings, out)


def step(
    shape: ShapeOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    compile: CompileOption = None,
    repeats: RepeatsOption = None,
) -> None:
    """Time a training step of LinearNO: forward, loss, backward, clipping, optimiser.

    The other candidates are the same network in plain PyTorch with the same weights: eager in fp32, and
    compiled in each precision where torch.compile works. The fields are random; times do not depend on them.

    Example:

      python -m benchmarks step --shape darcy --precision bf16 --out results
    """
    with user_errors():
        settings = BenchmarkOptions(device, precision, compile, repeats)
        _bench(shape, lambda name: bench_step(step_case(name), **settings.options), settings, out)


def train(
    recipe: Annotated[
        str, typer.Argument(help="name of a recipe, or a config.yaml", autocompletion=lambda: list(RECIPES))
    ],
    set_: SetOption = None,
    run: Annotated[Path | None, typer.Option(help="run folder; runs/RECIPE by default")] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    id: Annotated[str | None, typer.Option(help="id of the record; train/RECIPE by default")] = None,
) -> None:
    """Train a recipe and record its test error and the published one.

    Runs `linearno train`, then writes the record: mean test error, epochs, seed, hash of the data, minutes on
    the device. The same command resumes a stopped run; a finished run is only recorded.

    Example:

      python -m benchmarks train darcy/linearno --out results
    """
    with user_errors(), exit_on_interrupt():
        config = override(open_recipe(recipe), set_ or [])
        folder = run or Path("runs") / config.recipe.replace("/", "-")
        run_with_bar(config, folder, device)
        record = record_of_run(folder, id)
        against = "".join(f"; {name} {value:.4g}" for name, value in record.against.items())
        console.print(
            f"{record.id}: {record.value:.4g} {record.unit}{against}; {record.device_minutes:.1f} minutes"
        )
        keep_record(record, out)


class BenchmarkOptions:
    """Options of the verbs `attention` and `step`, with defaults for this machine."""

    def __init__(
        self, device: str, precision: list[Arithmetic] | None, compile: bool | None, repeats: int | None
    ):
        self.device = resolve_device(device)
        cuda = self.device.type == "cuda"
        default: list[Precision] = ["bf16", "tf32", "fp32"] if cuda else ["fp32"]
        precisions = [named_precision(each) for each in precision] if precision else default
        if not cuda and "tf32" in precisions:
            raise UserError("tf32 needs CUDA; on a CPU choose --precision fp32 or bf16")
        timing = TimingSettings.default(self.device)
        self.options: dict[str, Any] = {
            "device": self.device,
            "precisions": precisions,
            "compiled": cuda if compile is None else compile,
            "settings": timing if repeats is None else replace(timing, repeats=repeats),
            "ceilings": measure_ceilings(self.device),
        }


def named_precision(name: Arithmetic) -> Precision:
    return next(precision for precision in get_args(Precision) if precision == str(name))


def _bench(
    shapes: list[Shape] | None, measure: Callable[[str], Record], settings: BenchmarkOptions, out: Path | None
) -> None:
    console.print(f"on {device_name(settings.device)}")
    for name in map(str, shapes or DEFAULT_SHAPES):
        record = measure(name)
        console.print(times_table(record))
        keep_record(record, out)


def step_case(name: str) -> StepCase:
    """The step of the benchmark's LinearNO recipe; of the published settings if there is no recipe."""
    published, recipe = EXTRA_SHAPES.get(name) or BENCHMARKS[name], f"{name}/linearno"
    config = RECIPES[recipe]() if recipe in RECIPES else None
    frames = ROLLOUT_FRAMES if config and isinstance(config.task, Rollout) else 1
    spec = FieldSpec(
        coords=tuple(f"coord_{i}" for i in range(published.coords)),
        inputs=tuple(f"input_{i}" for i in range(published.inputs)),
        outputs=tuple(f"output_{i}" for i in range(frames * published.outputs)),
        grid=published.settings["linearno"].get("grid"),
        standardised=("inputs", "outputs") if frames == 1 else (),
    )
    with torch.device("meta"):
        sizes = build("linearno", published).cost_shape(published.points)
    return StepCase(
        name=name,
        spec=spec,
        points=published.points,
        model=config.model if config else model_config("linearno", name),
        task=config.task if config else Task(),
        training=config.training if config else EXTRA_TRAINING[name],
        recipe=config.recipe if config else None,
        flops=frames * flops(sizes),
        linearno_only=name == "million",
    )
