"""`linearno train`: fit a recipe and print its test error."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from linearno.cli.shared import DeviceOption, console, progress_bar, user_errors
from linearno.cli.track import tensorboard
from linearno.core.config import override, read_yaml, yaml_values
from linearno.core.device import describe, resolve_device
from linearno.data.cases_config import read_dataset
from linearno.experiment import RunConfig, run
from linearno.recipes import RECIPES
from linearno.recipes.cases import cases_run
from linearno.training import WORDS, EpochRecord, Interrupted, parallel


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="a recipe's name (see `linearno recipes`), a dataset.yaml, or the config.yaml of a run",
            autocompletion=lambda: list(RECIPES),
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change any field of the recipe; may be repeated"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/RECIPE by default")] = None,
    device: DeviceOption = "auto",
    track: Annotated[Path | None, typer.Option(help="also log the curves to this TensorBoard folder")] = None,
) -> None:
    """Fit a recipe, score it once on the test split, and write a run folder.

    Stop it with Ctrl-C whenever you like: the same command goes on where it stopped.

    Example:  linearno train darcy/linearno

    Shorter:  linearno train darcy/linearno --set training.epochs=50 --set model.slices=96 --out runs/short

    Your own simulations:  linearno init simulations/  and then  linearno train dataset.yaml

    On two GPUs:  torchrun --nproc-per-node 2 -m linearno train darcy/linearno
    """
    with user_errors(), stops_politely(), parallel.processes(device) as own_device:
        if not parallel.writes():
            console.quiet = True
            logging.disable(logging.WARNING)
        config = override(open_recipe(recipe), set_ or [])
        folder = out or Path("runs") / config.recipe.replace("/", "-")
        metrics = run_with_bar(config, folder, str(own_device), track if parallel.writes() else None)
        metric = metrics["metric"]
        error, baseline = metrics[metric], metrics["mean_field"][metric]
        console.print(
            f"test {WORDS[metric]} {error['mean']:.4g} "
            f"(median {error['median']:.4g}, max {error['max']:.4g}) on {metrics['samples']} samples; "
            f"the mean field alone gives {baseline:.4g}"
        )
        for name, found in metrics.get("relative_l2_by_field", {}).items():
            console.print(f"  {name}: {found['mean']:.4g}; its mean alone gives {found['mean_field']:.4g}")
        console.print(f"run folder: {folder}   next: linearno report {folder}")


def open_recipe(name: str) -> RunConfig:
    """The recipe of that name, a run's config.yaml, or a run that suits the cases of a dataset.yaml."""
    if not name.endswith((".yaml", ".yml")):
        return RECIPES[name]()
    if "recipe" in yaml_values(Path(name)):
        return read_yaml(Path(name), RunConfig)
    return cases_run(read_dataset(Path(name)))


def run_with_bar(config: RunConfig, folder: Path, device: str, track: Path | None = None) -> dict[str, Any]:
    """`run`, with a bar that shows the epochs and the loss."""
    where = resolve_device(device)
    console.print(f"{config.recipe} on {describe(where)}, {config.training.precision} → {folder}")
    bar = progress_bar(config.recipe, config.training.epochs)
    with tensorboard(track) as log, bar as advance:
        done = 0

        def on_epoch(record: EpochRecord) -> None:
            nonlocal done
            validation = "" if record.validation is None else f"  validation {record.validation:.4g}"
            advance(record.epoch - done, f"{config.recipe}  loss {record.loss:.4g}{validation}")
            done = record.epoch
            log(record)

        return run(config, folder, where, on_epoch)


@contextmanager
def stops_politely() -> Iterator[None]:
    """A stop by signal is a message and an exit code, not an accident."""
    try:
        yield
    except Interrupted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(128 + (stop.signal or signal.SIGINT)) from None
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from what is already done", err=True)
        raise typer.Exit(130) from None
