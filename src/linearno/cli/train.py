"""`linearno train`: train a recipe and print its test error."""

import logging
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

from linearno.cli.shared import DeviceOption, ImportOption, console, progress_bar, user_errors
from linearno.cli.track import tensorboard
from linearno.core.config import read_yaml, read_yaml_values
from linearno.core.device import device_name, resolve_device
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.data import Splits, metric_title
from linearno.experiment import CLOSED_FORM, run
from linearno.initialization import open_splits
from linearno.meshes.config import CasesConfig, read_dataset
from linearno.models import import_definitions
from linearno.recipes import RECIPES
from linearno.recipes.cases import cases_run
from linearno.recipes.model_choice import (
    CLASSICAL,
    MIN_CASES,
    Candidate,
    calibrate_run,
    choose,
    cross_validated,
    is_good_enough,
    network_run,
    seconds_per_epoch,
    trained_candidate,
    try_baselines,
    try_classical,
    write_choice,
)
from linearno.recipes.tuning import read_tuning, search, write_tuning
from linearno.run_config import RunConfig, apply_changes
from linearno.run_folder import extend_run, open_run
from linearno.training import EpochRecord, Interrupted, parallel

DEFAULT_MINUTES = 15.0


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
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="time for the network where the model is chosen for a dataset.yaml; 15"),
    ] = None,
    ensemble: Annotated[
        int | None,
        typer.Option(min=2, help="networks with different seeds: their mean and standard deviation"),
    ] = None,
    tune: Annotated[
        float | None,
        typer.Option(
            "--tune", min=0.01, metavar="MINUTES", help="search for learning rate, width and slices"
        ),
    ] = None,
) -> None:
    """Train a recipe, evaluate it once on the test split, and write a run folder.

    Stop with Ctrl-C at any time: the same command resumes from the last checkpoint.

    For a dataset.yaml the model is chosen on validation cases: pod-gp where all cases share a mesh, or
    LinearNO, for which --minutes are planned. --set model.name=NAME trains one model.

    Examples:

      linearno train darcy/linearno
      linearno train darcy/linearno --set training.epochs=50 --out runs/short
      linearno train dataset.yaml
      linearno train dataset.yaml --tune 10 --ensemble 5
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
        tracked = track if parallel.is_main_process() else None
        changes = [*(set_ or []), *([] if ensemble is None else [f"training.members={ensemble}"])]
        data = cases_to_choose_for(recipe, set_ or [], more_epochs, init_from)
        if data is not None and parallel.size() == 1:
            metrics, folder = choose_and_train(
                data, out, str(own_device), minutes or DEFAULT_MINUTES, tracked, ensemble or 1, tune
            )
        else:
            if minutes is not None:
                raise UserError(
                    "--minutes plans the network of a dataset.yaml whose model is chosen: leave it out"
                )
            if tune is not None:
                raise UserError("--tune is for a dataset.yaml whose model is chosen: leave it out")
            config, folder = plan_run(recipe, changes, out, more_epochs, init_from)
            metrics = run_with_bar(config, folder, str(own_device), tracked)
        print_metrics(metrics, folder)


def print_metrics(metrics: Mapping[str, Any], folder: Path) -> None:
    """Print test errors with those of the baselines, and what to do next."""
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
    for name, value in metrics.get("quantities", {}).items():
        console.print(
            f"  {name}: mean error {value['mean_error']:.4g}, {value['relative_error']:.3g} of its size"
        )
    nearest = metrics.get("nearest_case", {})
    for name, field in metrics.get("relative_l2_by_field", {}).items():
        more = f", nearest case {nearest[name]:.4g}" if name in nearest else ""
        console.print(f"  {name}: {field['mean']:.4g}; mean-field baseline {field['mean_field']:.4g}{more}")
    console.print(f"run folder: {folder}   next: linearno report {folder}")


def cases_to_choose_for(
    name: str, changes: list[str], more_epochs: int | None, init_from: Path | None
) -> CasesConfig | None:
    """The cases of a dataset.yaml whose model is to be chosen; None if the options describe one model."""
    is_yaml = name.endswith((".yaml", ".yml")) and not Path(name).is_dir()
    if (
        not is_yaml
        or more_epochs is not None
        or init_from is not None
        or "recipe" in read_yaml_values(Path(name))
    ):
        return None
    if any(not change.startswith("data.") for change in changes):
        return None
    config = apply_changes(cases_run(read_dataset(Path(name))), changes)
    assert isinstance(config.data, CasesConfig)
    return config.data


def choose_and_train(
    data: CasesConfig,
    out: Path | None,
    device: str,
    minutes: float,
    track: Path | None,
    members: int = 1,
    tune_minutes: float | None = None,
) -> tuple[dict[str, Any], Path]:
    """Try what applies on validation cases, train the best model; metrics and folder of its run."""
    resolved, seed = resolve_device(device), 0
    splits = open_splits(data)
    if len(splits.train) < MIN_CASES and tune_minutes is not None:
        raise UserError(
            f"--tune needs {MIN_CASES} training cases, there are {len(splits.train)}: leave it out"
        )
    if len(splits.train) < MIN_CASES:
        console.print(
            f"{len(splits.train)} training cases are too few to choose a model: LinearNO is trained"
        )
        config = apply_changes(cases_run(data, splits=splits), [f"training.members={members}"])
        return run_with_bar(config, out or folder_of(config), device, track, splits), out or folder_of(config)
    console.print(f"{splits.source}: {len(splits.train)} to train, {len(splits.test)} to test")
    candidates = [*try_baselines(splits, seed), try_classical(data, splits, seed)]
    print_candidates(candidates)
    classical = cases_run(data, CLASSICAL, splits)
    if candidates[-1].errors and is_good_enough(candidates[-1], candidates[:-1]):
        folder = out or folder_of(classical)
        console.print(f"chosen: {CLASSICAL}; --set model.name=linearno trains the network", soft_wrap=True)
        if members > 1:
            console.print(f"{CLASSICAL} has a standard deviation: no ensemble of networks is trained")
        if tune_minutes is not None:
            console.print("no network is trained: there is nothing to tune")
        metrics = run_with_bar(classical, folder, device, track, splits)
    else:
        network = network_run(data, splits, resolved, minutes, members)
        folder = out or folder_of(network)
        if tune_minutes is not None:
            changes = tuned_changes(network, splits, resolved, folder, tune_minutes)
            network = network_run(data, splits, resolved, minutes, members, changes)
        network = resumed_or(network, folder)
        seconds = members * network.training.epochs * seconds_per_epoch(network, splits, resolved)
        count = f"{members} × {network.training.epochs}" if members > 1 else f"{network.training.epochs}"
        console.print(f"{network.model.name}: {count} epochs, about {format_duration(seconds)}")
        metrics = run_with_bar(network, folder, device, track, splits)
        candidates.append(trained_candidate(folder, splits, seed, resolved))
    best, reason = choose(candidates)
    console.print(f"chosen: {reason}", soft_wrap=True)
    if best.name == CLASSICAL and metrics["protocol"] != CLOSED_FORM:
        folder = Path(f"{folder}-{CLASSICAL}")
        metrics = run_with_bar(classical, folder, device, track, splits)
    tuning = None if tune_minutes is None or best.name == CLASSICAL else read_tuning(folder)
    write_choice(folder, candidates, best.name, reason, tuning)
    calibrate_run(
        folder, splits, cross_validated(data, splits, seed) if best.name == CLASSICAL else None, seed
    )
    return metrics, folder


def tuned_changes(
    network: RunConfig, splits: Splits, device: torch.device, folder: Path, minutes: float
) -> list[str]:
    """The best settings of a search, or those that an interrupted run in `folder` has found."""
    if (found := read_tuning(folder)) is None:
        console.print(f"tuning: about {format_duration(60 * minutes)}")
        best, trials = search(network, splits, device, minutes)
        for one in trials:
            error = one.note if one.error is None else f"{one.error:.3g}"
            console.print(
                f"  round {one.round}, {one.epochs} epochs: {', '.join(one.changes)}: {error}", soft_wrap=True
            )
        write_tuning(folder, best, trials)
        found = {"best": list(best)}
    console.print(f"tuned: {', '.join(found['best'])}")
    return list(found["best"])


def resumed_or(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration of an interrupted run on the same data, whose number of epochs may differ."""
    if not (folder / "config.yaml").exists():
        return config
    stored = open_run(folder)
    parts = [(one.data, one.model, one.training.members) for one in (stored, config)]
    return stored if parts[0] == parts[1] else config


def folder_of(config: RunConfig) -> Path:
    """The run folder if none is given."""
    return Path("runs") / config.recipe.replace("/", "-")


def print_candidates(candidates: Sequence[Candidate]) -> None:
    """Print the errors on the validation cases."""
    for one in candidates:
        errors = ", ".join(f"{name} {error:.3g}" for name, error in one.errors.items())
        console.print(f"  {one.name}: {errors or f'not tried, {one.note}'}", soft_wrap=True)


def plan_run(
    name: str, changes: list[str], out: Path | None, more_epochs: int | None, init_from: Path | None
) -> tuple[RunConfig, Path]:
    """Configuration and folder of the run to start, resume or extend; arguments as those of `train`."""
    folder = Path(name) if Path(name).is_dir() else None
    if folder is None:
        if more_epochs is not None:
            raise UserError(f"--more-epochs continues a finished run: expected its folder, got {name!r}")
        config = open_recipe(name, changes)
        config = _with_model_of(init_from, config, changes)
    elif changes or out is not None or init_from is not None:
        raise UserError(
            f"{folder} already has a configuration: omit --set, --out and --init-from, or start another run "
            f"with {folder / 'config.yaml'}"
        )
    else:
        return open_run(folder) if more_epochs is None else extend_run(folder, more_epochs), folder
    initial = [] if init_from is None else [f"init_from={_quote_yaml(str(init_from))}"]
    config = apply_changes(config, [*changes, *initial])
    return config, out or folder_of(config)


def _with_model_of(run: Path | None, config: RunConfig, changes: Sequence[str]) -> RunConfig:
    """The model settings of the run that initialises the weights, for own cases without other settings."""
    named = any(change.startswith("model.") for change in changes)
    if run is None or named or not isinstance(config.data, CasesConfig) or not (run / "config.yaml").exists():
        return config
    model = open_run(run).model
    return config.model_copy(update={"model": model}) if model.name == config.model.name else config


def _quote_yaml(text: str) -> str:
    """`text` as a quoted YAML string."""
    return "'" + text.replace("'", "''") + "'"


def open_recipe(name: str, changes: Sequence[str] = ()) -> RunConfig:
    """Configuration of a recipe by name, from a config.yaml, or for the cases of a dataset.yaml.

    Args:
        name: of the recipe, or path of the file.
        changes: `FIELD=VALUE`, of which `model.name` selects the defaults for a dataset.yaml.
    """
    if not name.endswith((".yaml", ".yml")):
        return RECIPES[name]()
    if "recipe" in read_yaml_values(Path(name)):
        return read_yaml(Path(name), RunConfig)
    models = [change.partition("=")[2] for change in changes if change.startswith("model.name=")]
    return cases_run(read_dataset(Path(name)), models[-1] if models else "linearno")


def run_with_bar(
    config: RunConfig, folder: Path, device: str, track: Path | None = None, splits: Splits | None = None
) -> dict[str, Any]:
    """Call `experiment.run` and show epochs and loss: a progress bar on a terminal, else a line per epoch."""
    resolved = resolve_device(device)
    console.print(f"{config.recipe} on {device_name(resolved)}, {config.training.precision} → {folder}")
    epochs = config.training.epochs * config.training.members
    bar = progress_bar(config.recipe, epochs)
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
                left = median(recent_seconds) * (epochs - record.epoch)
                eta = f", about {format_duration(left)} left" if left else ""
                console.print(
                    f"epoch {record.epoch}/{epochs}  loss {record.loss:.4g}{validation}  "
                    f"lr {record.lr:.3g}  {record.seconds:.2f} s{eta}",
                    soft_wrap=True,
                )
            log(record)

        return run(config, folder, resolved, on_epoch, splits=splits)


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
