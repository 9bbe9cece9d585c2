"""Folder of a run: configuration, lock, results, and extension by more epochs.

A run folder contains config.yaml, metrics.json, per_sample.csv, history.jsonl, the bundle (model.safetensors
and model.json), checkpoint/ and figures/.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from linearno.core.atomic_io import folder_lock, writable_folder, write_json, write_text
from linearno.core.config import first_difference, read_yaml, read_yaml_values, write_yaml
from linearno.core.errors import UserError, require
from linearno.models import self_fitting
from linearno.run_config import RunConfig, config_fingerprint
from linearno.training import parallel
from linearno.training.checkpoint import Checkpoints
from linearno.training.history import has_stalled, read_history

BUSY = "another process is training in {root}; wait, or choose another --out"
EXPECTED_RUN = "give a run folder written by `linearno train`"


def open_run(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    require(folder, how=EXPECTED_RUN)
    return read_yaml(require(folder / "config.yaml", how=EXPECTED_RUN), RunConfig)


def refuse_another_run(folder: Path, config: RunConfig) -> None:
    """Raise if the folder contains a run with another configuration."""
    path = folder / "config.yaml"
    if path.exists() and (stored := read_yaml(path, RunConfig)) != config:
        what = first_difference(stored.model_dump(mode="json"), config.model_dump(mode="json"))
        raise UserError(
            f"{folder} contains a run with another configuration ({what}); choose another --out or remove it"
        )


def member_folder(folder: Path, number: int) -> Path:
    """Run folder of a member of an ensemble, counted from 0."""
    return folder / f"member{number + 1}"


def training_seconds(folder: Path) -> float:
    """Seconds of all epochs of a run, or of the members of an ensemble."""
    paths = sorted(folder.glob("member*/history.jsonl")) or [folder / "history.jsonl"]
    return float(sum(record.seconds for path in paths for record in read_history(path)))


@contextmanager
def locked_folder(folder: Path, config: RunConfig) -> Iterator[str]:
    """Lock the run folder and write its configuration in the main process; yield its fingerprint.

    The fingerprint is that of the stored file, which has the fields of the version that wrote it.
    """
    path = folder / "config.yaml"
    stored = config_fingerprint(read_yaml_values(path)) if path.exists() else config.fingerprint
    if not parallel.is_main_process():
        yield stored
        return
    with folder_lock(writable_folder(folder), busy=BUSY):
        refuse_another_run(folder, config)  # again, since another process may have written to the folder
        if not path.exists():
            write_yaml(path, config)
        yield stored


def extend_run(folder: Path, epochs: int) -> RunConfig:
    """Prepare a finished run for `epochs` more epochs and return the new configuration.

    Weights, optimiser state and history are kept. Training continues at the same step of the longer learning
    rate schedule: with `schedule=constant` the result equals that of an uninterrupted run. A run that has
    stopped early takes all of the epochs: its `patience` becomes 0. Of an ensemble each member is extended.
    """
    config = open_run(folder)
    if self_fitting(config.model.name):
        raise UserError(f"model {config.model.name!r} is fitted in closed form: it takes no more epochs")
    if config.training.members > 1:
        members = [member_folder(folder, number) for number in range(config.training.members)]
        for member in members:
            _extended(member, open_run(member), epochs)  # all have finished, before one is changed
        for member in members:
            extend_run(member, epochs)
        return config
    longer = _extended(folder, config, epochs)
    stored = read_yaml_values(folder / "config.yaml")
    checkpoints = Checkpoints(folder / "checkpoint", config_fingerprint(stored), config.checkpoint_settings)
    checkpoints.extend(longer.fingerprint, longer.checkpoint_settings)
    write_yaml(folder / "config.yaml", longer)
    return longer


def _extended(folder: Path, config: RunConfig, epochs: int) -> RunConfig:
    """The configuration of a finished run with more epochs."""
    history = read_history(folder / "history.jsonl")
    done, changes = len(history), {"epochs": config.training.epochs + epochs}
    if has_stalled(history, config.training.patience):
        changes = {"epochs": done + epochs, "patience": 0}
    elif done < config.training.epochs:
        raise UserError(
            f"{folder} has finished {done} of {config.training.epochs} epochs: finish the run with "
            f"`linearno train {folder}` before you extend it"
        )
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def write_results(
    folder: Path, metrics: Mapping[str, Any], errors: Mapping[str, Tensor], names: Sequence[str] = ()
) -> None:
    """Write metrics.json, and per_sample.csv with a column of errors for each metric.

    Args:
        folder: of the run.
        metrics: content of metrics.json.
        errors: error of each sample, by metric.
        names: of the samples, if they have names: a further column `name`.
    """
    write_json(folder / "metrics.json", metrics)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["sample", *errors, *(["name"] if names else [])])
    for i, row in enumerate(zip(*(values.tolist() for values in errors.values()), strict=True)):
        writer.writerow([i, *(f"{error:.9g}" for error in row), *names[i : i + 1]])
    write_text(folder / "per_sample.csv", text.getvalue())
