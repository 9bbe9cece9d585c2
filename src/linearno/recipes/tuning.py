"""A short search for learning rate, width and slices of a network, on validation cases."""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from linearno.core.atomic_io import read_json, write_json
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data import Splits
from linearno.initialization import untrained
from linearno.recipes.model_choice import field_errors, mean_error, seconds_per_epoch
from linearno.run_config import RunConfig, apply_changes
from linearno.training import fit

FACTORS = {"training.lr": (0.3, 1.0, 3.0), "model.width": (0.5, 1, 2), "model.slices": (0.5, 1, 2)}
TRIALS = 8  # settings in the first round, of which each round keeps the better half
TUNING = "tuning.json"

Changes = tuple[str, ...]  # of a configuration, as FIELD=VALUE


@dataclass(frozen=True)
class Trial:
    """A setting that was trained for a short time.

    Args:
        changes: of the configuration, as `FIELD=VALUE`.
        round: of the search, from 1.
        epochs: that it was trained.
        seconds: that it took.
        error: mean over the fields of the relative L2 error on the validation cases; None if it failed.
        note: why it failed.
    """

    changes: Changes
    round: int
    epochs: int
    seconds: float
    error: float | None
    note: str = ""


def search(
    config: RunConfig, splits: Splits, device: torch.device, minutes: float
) -> tuple[Changes, list[Trial]]:
    """The best changes of a configuration that holds out validation cases, and everything that was tried."""
    return successive_halving(
        candidates(config), partial(_train_briefly, config, splits, device), 60 * minutes
    )


def successive_halving(
    settings: Sequence[Changes], attempt: Callable[[Changes, int, float], Trial], seconds: float
) -> tuple[Changes, list[Trial]]:
    """Try all settings, then the better half for twice as long, until one is left.

    Args:
        settings: two or more.
        attempt: tries one of them in a round (from 1) for so many seconds.
        seconds: of the search, which its rounds share equally.

    Returns:
        The best setting, and everything that was tried.
    """
    remaining, trials = list(settings), []
    rounds = (len(remaining) - 1).bit_length()
    for number in range(1, rounds + 1):
        tried = [attempt(changes, number, seconds / rounds / len(remaining)) for changes in remaining]
        trials += tried
        done = sorted((one for one in tried if one.error is not None), key=lambda one: one.error or 0.0)
        if not done:
            raise UserError(f"no setting could be trained: {trials[-1].note}")
        remaining = [one.changes for one in done[: max(1, len(remaining) // 2)]]
    return remaining[0], trials


def candidates(config: RunConfig) -> list[Changes]:
    """The configuration as it is, and settings around it that are drawn with its seed."""
    sizes = {"training.lr": config.training.lr}
    sizes |= {name: getattr(config.model, name.partition(".")[2]) for name in ("model.width", "model.slices")}
    choices = [[f"{name}={_scaled(sizes[name], by)}" for by in FACTORS[name]] for name in FACTORS]
    every = list(itertools.product(*choices))
    start = tuple(f"{name}={_scaled(sizes[name], 1)}" for name in FACTORS)
    order = torch.randperm(len(every), generator=torch_generator(config.seed)).tolist()
    drawn = [every[i] for i in order if every[i] != start and _is_valid(config, every[i])]
    return [start, *drawn[: TRIALS - 1]]


def _scaled(value: int | float, factor: int | float) -> float | int:
    return max(1, int(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def _is_valid(config: RunConfig, changes: Changes) -> bool:
    """Whether the changes make a model, whose width is a multiple of its heads."""
    model = apply_changes(config, list(changes)).model
    return model.width % model.heads == 0  # type: ignore[attr-defined]


def _train_briefly(
    config: RunConfig,
    splits: Splits,
    device: torch.device,
    changes: Changes,
    number: int,
    seconds: float,
) -> Trial:
    """Train for about so many seconds with a complete schedule, and predict the validation cases."""
    began = time.perf_counter()
    changed = apply_changes(config, list(changes))
    epochs = max(1, int(seconds / seconds_per_epoch(changed, splits, device)))
    training = changed.training.model_copy(update={"epochs": epochs, "patience": 0, "members": 1})
    changed = changed.model_copy(update={"training": training})
    error, note = None, ""
    try:
        bundle, setup = untrained(changed, splits)
        assert setup.validation is not None
        with tempfile.TemporaryDirectory() as scratch:
            fit(setup, device=device, folder=Path(scratch), fingerprint=changed.fingerprint)
        error = mean_error(field_errors(bundle.predict_data(setup.validation), setup.validation))
    except UserError as failure:
        note = str(failure)
    return Trial(changes, number, epochs, time.perf_counter() - began, error, note)


def write_tuning(folder: Path, best: Changes, trials: list[Trial]) -> None:
    """Write `tuning.json`, which an interrupted run reads instead of searching again."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TUNING, {"best": list(best), "tried": [asdict(one) for one in trials]})


def read_tuning(folder: Path) -> dict[str, Any] | None:
    """The search of a run; None if there was none."""
    path = folder / TUNING
    return read_json(path, how="remove it") if path.exists() else None
