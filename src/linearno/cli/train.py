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
from linearno.run_config import RunConfig, apply_changes
from linearno.run_folder import extend_run, open_run
from linearno.training import EpochRecord, Interrupted, parallel


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="recipe, such as BENCHMARK/MODEL (see `linearno recipes`); a dataset.yaml or config.yaml; "
            "or a run folder to resume",
            autocompletion=lambda: list(RECIPES),
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change a field of the configuration; repeatable"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/RECIPE by default")] = None,
    device: DeviceOption = "auto",
    more_epochs: Annotated[
        int | None,
        typer.Option("--more-epochs", min=1, help="continue a finished run for this many epochs"),
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option("--init-from", help="run folder whose weights initialise the model")
    ] = None,
    imports: ImportOption = None,
    track: Annotated[Path | None, typer.Option(help="TensorBoard folder for the training curves")] = None,
) -> None:
    """Train a recipe, evaluate it once on the test split, and write a run folder.

    Stop with Ctrl-C at any time: the same command resumes from the last checkpoint.

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
        config, folder = plan_run(recipe, set_ or [], out, more_epochs, init_from)
        metrics = run_with_bar(config, folder, str(own_device), track if parallel.is_main_process() else None)
        metric = metrics["metric"]
        error, baseline = metrics[metric], metrics["mean_field"][metric]
        console.print(
            f"test {metric_title(metric)} {error['mean']:.4g} "
            f"(median {error['median']:.4g}, max {error['max']:.4g}) on {metrics['samples']} samples; "
            f"mean-field baseline {baseline:.4g}",
            soft_wrap=True,
        )
        for name, value in metrics["summaries"].items():
            console.print(f"  {metric_title(name)}: {value:.4g}")
        for name, field in metrics.get("relative_l2_by_field", {}).items():
            console.print(f"  {name}: {field['mean']:.4g}; mean-field baseline {field['mean_field']:.4g}")
        console.print(f"run folder: {folder}   next: linearno report {folder}")


def plan_run(
    name: str, changes: list[str], out: Path | None, more_epochs: int | None, init_from: Path | None
) -> tuple[RunConfig, Path]:
    """Configuration and folder of the run to start, resume or extend; arguments as those of `train`."""
    folder = Path(name) if Path(name).is_dir() else None
    if folder is None:
        if more_epochs is not None:
            raise UserError(f"--more-epochs continues a finished run: expected its folder, got {name!r}")
        config = open_recipe(name)
    elif changes or out is not None or init_from is not None:
        raise UserError(
            f"{folder} already has a configuration: omit --set, --out and --init-from, or start another run "
            f"with {folder / 'config.yaml'}"
        )
    else:
        return open_run(folder) if more_epochs is None else extend_run(folder, more_epochs), folder
    initial = [] if init_from is None else [f"init_from={_quote_yaml(str(init_from))}"]
    config = apply_changes(config, [*changes, *initial])
    return config, out or Path("runs") / config.recipe.replace("/", "-")


def _quote_yaml(text: str) -> str:
    """`text` as a quoted YAML string."""
    return "'" + text.replace("'", "''") + "'"


def open_recipe(name: str) -> RunConfig:
    """Configuration of a recipe by name, from a config.yaml, or for the cases of a dataset.yaml."""
    if not name.endswith((".yaml", ".yml")):
        return RECIPES[name]()
    if "recipe" in read_yaml_values(Path(name)):
        return read_yaml(Path(name), RunConfig)
    return cases_run(read_dataset(Path(name)))


def run_with_bar(config: RunConfig, folder: Path, device: str, track: Path | None = None) -> dict[str, Any]:
    """Call `experiment.run` and show epochs and loss: a progress bar on a terminal, else a line per epoch."""
    resolved = resolve_device(device)
    console.print(f"{config.recipe} on {device_name(resolved)}, {config.training.precision} → {folder}")
    bar = progress_bar(config.recipe, config.training.epochs)
    with tensorboard(track) as log, bar as advance:
        done = 0
        recent_seconds: deque[float] = deque(maxlen=5)  # of the last epochs

        def on_epoch(record: EpochRecord) -> None:
            nonlocal done
            validation = "" if record.validation is None else f"  validation {record.validation:.4g}"
            advance(record.epoch - done, f"{config.recipe}  loss {record.loss:.4g}{validation}")
            done = record.epoch
            if not console.is_terminal:
                recent_seconds.append(record.seconds)
                left = median(recent_seconds) * (config.training.epochs - record.epoch)
                eta = f", about {format_duration(left)} left" if left else ""
                console.print(
                    f"epoch {record.epoch}/{config.training.epochs}  loss {record.loss:.4g}{validation}  "
                    f"lr {record.lr:.3g}  {record.seconds:.2f} s{eta}",
                    soft_wrap=True,
                )
            log(record)

        return run(config, folder, resolved, on_epoch)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Turn an interrupt into a message and exit code 128 + signal, without a traceback."""
    try:
        yield
    except Interrupted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(128 + (stop.signal or signal.SIGINT)) from None
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes", err=True)
        raise typer.Exit(130) from None
