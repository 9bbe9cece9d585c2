"""`linearno train`: train a recipe and print its test error."""

import logging
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from linearno.cli.shared import DeviceOption, ImportOption, console, progress_bar, user_errors
from linearno.cli.track import tensorboard
from linearno.core.config import read_yaml, read_yaml_values
from linearno.core.device import device_name, resolve_device
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.data import metric_title
from linearno.experiment import run
from linearno.meshes.config import read_dataset
from linearno.models import import_definitions
from linearno.recipes import RECIPES
from linearno.recipes.cases import cases_run
from linearno.run_config import RunConfig, changed
from linearno.run_folder import extend_run, open_run
from linearno.training import EpochRecord, Interrupted, parallel


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="BENCHMARK/MODEL or another recipe (see `linearno recipes`), a dataset.yaml, a config.yaml, "
            "or a run folder to resume",
            autocompletion=lambda: list(RECIPES),
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change any field of the recipe; may be repeated"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/RECIPE by default")] = None,
    device: DeviceOption = "auto",
    more_epochs: Annotated[
        int | None,
        typer.Option("--more-epochs", min=1, help="train a finished run for this many more epochs"),
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option("--init-from", help="start from the weights of this run folder")
    ] = None,
    imports: ImportOption = None,
    track: Annotated[Path | None, typer.Option(help="also log the curves to this TensorBoard folder")] = None,
) -> None:
    """Train a recipe, score it once on the test split, and write a run folder.

    Stop it with Ctrl-C whenever you like: the same command resumes.

    Examples:

      linearno train darcy/linearno
      linearno train darcy/linearno --set training.epochs=50 --out runs/short
      linearno train dataset.yaml
      linearno train darcy/mynet --import mynet.py
      linearno train runs/darcy-linearno --more-epochs 100
      linearno train pipe/linearno --init-from runs/darcy-linearno
      torchrun --nproc-per-node 2 -m linearno train darcy/linearno
    """
    with user_errors(), exit_on_interrupt(), parallel.processes(device) as own_device:
        if not parallel.is_main_process():
            console.quiet = True
            logging.disable(logging.WARNING)
        import_definitions(imports or [])
        config, folder = planned_run(recipe, set_ or [], out, more_epochs, init_from)
        metrics = run_with_bar(config, folder, str(own_device), track if parallel.is_main_process() else None)
        metric = metrics["metric"]
        error, baseline = metrics[metric], metrics["mean_field"][metric]
        console.print(
            f"test {metric_title(metric)} {error['mean']:.4g} "
            f"(median {error['median']:.4g}, max {error['max']:.4g}) on {metrics['samples']} samples; "
            f"the mean field alone gives {baseline:.4g}",
            soft_wrap=True,
        )
        for name, value in metrics["summaries"].items():
            console.print(f"  {metric_title(name)}: {value:.4g}")
        for name, found in metrics.get("relative_l2_by_field", {}).items():
            console.print(f"  {name}: {found['mean']:.4g}; its mean alone gives {found['mean_field']:.4g}")
        console.print(f"run folder: {folder}   next: linearno report {folder}")


def planned_run(
    name: str, changes: list[str], out: Path | None, more_epochs: int | None, init_from: Path | None
) -> tuple[RunConfig, Path]:
    """The configuration and the folder of a run to start, resume or extend."""
    folder = Path(name) if Path(name).is_dir() else None
    if folder is None:
        if more_epochs is not None:
            raise UserError(f"--more-epochs continues a finished run: give its folder, not {name!r}")
        config = open_recipe(name)
    elif changes or out is not None or init_from is not None:
        raise UserError(
            f"{folder} has its own configuration: leave --set, --out and --init-from out, or "
            f"start another with {folder / 'config.yaml'}"
        )
    else:
        return open_run(folder) if more_epochs is None else extend_run(folder, more_epochs), folder
    started = [] if init_from is None else [f"init_from={_quoted(str(init_from))}"]
    config = changed(config, [*changes, *started])
    return config, out or Path("runs") / config.recipe.replace("/", "-")


def _quoted(text: str) -> str:
    """As a YAML string, whatever it looks like."""
    return "'" + text.replace("'", "''") + "'"


def open_recipe(name: str) -> RunConfig:
    """The recipe of that name, a run's config.yaml, or a run that suits the cases of a dataset.yaml."""
    if not name.endswith((".yaml", ".yml")):
        return RECIPES[name]()
    if "recipe" in read_yaml_values(Path(name)):
        return read_yaml(Path(name), RunConfig)
    return cases_run(read_dataset(Path(name)))


def run_with_bar(config: RunConfig, folder: Path, device: str, track: Path | None = None) -> dict[str, Any]:
    """`run`, with a bar that shows the epochs and the loss."""
    where = resolve_device(device)
    console.print(f"{config.recipe} on {device_name(where)}, {config.training.precision} → {folder}")
    bar = progress_bar(config.recipe, config.training.epochs)
    with tensorboard(track) as log, bar as advance:
        done = 0
        took: deque[float] = deque(maxlen=5)  # seconds of the last epochs

        def on_epoch(record: EpochRecord) -> None:
            nonlocal done
            validation = "" if record.validation is None else f"  validation {record.validation:.4g}"
            advance(record.epoch - done, f"{config.recipe}  loss {record.loss:.4g}{validation}")
            done = record.epoch
            if not console.is_terminal:
                took.append(record.seconds)
                left = median(took) * (config.training.epochs - record.epoch)
                more = f", about {format_duration(left)} left" if left else ""
                console.print(
                    f"epoch {record.epoch}/{config.training.epochs}  loss {record.loss:.4g}{validation}  "
                    f"lr {record.lr:.3g}  {record.seconds:.2f} s{more}",
                    soft_wrap=True,
                )
            log(record)

        return run(config, folder, where, on_epoch)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """A stop by signal is a message and an exit code, not an accident."""
    try:
        yield
    except Interrupted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(128 + (stop.signal or signal.SIGINT)) from None
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from what is already done", err=True)
        raise typer.Exit(130) from None
