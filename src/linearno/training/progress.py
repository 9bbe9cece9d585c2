"""The progress of training in a run folder."""

import shlex
from pathlib import Path

from linearno.core.atomic_io import read_json
from linearno.core.config import read_yaml_values
from linearno.core.errors import UserError


def unfinished(folder: Path, *, extended: bool = False) -> str | None:
    """For a run folder without a model: the epochs done, and the command that continues; else None.

    With `extended` also for a run that was given more epochs after its model was written.
    """
    config, model = folder / "config.yaml", folder / "model.json"
    if not config.exists() or (model.exists() and not extended):
        return None
    training = read_yaml_values(config).get("training")
    epochs = training.get("epochs") if isinstance(training, dict) else None
    done = _epochs_done(folder)
    if model.exists() and (not done or done == epochs):
        return None
    command = f"linearno train {shlex.quote(str(folder))}"
    if done == epochs:
        return f"{folder / 'model.json'} does not exist, but all {done} epochs are done; write it: {command}"
    total = f" of {epochs}" if isinstance(epochs, int) else ""
    return f"{folder} is not trained to the end: {done}{total} epochs are done; continue: {command}"


def _epochs_done(folder: Path) -> int:
    """Epochs in the latest checkpoint; 0 if it cannot be read."""
    try:
        name = (folder / "checkpoint" / "latest").read_text(encoding="utf-8").strip()
        return int(read_json(folder / "checkpoint" / name / "state.json", how="")["values"]["epoch"])
    except (OSError, UserError, ValueError, LookupError, TypeError):
        return 0
