"""How far the training of a run folder has got."""

import shlex
from pathlib import Path

from linearno.core.atomic_io import read_json
from linearno.core.config import read_yaml_values
from linearno.core.errors import UserError


def unfinished(folder: Path, *, extended: bool = False) -> str | None:
    """For a run folder without a model: how many epochs are done, and the command that continues.

    With `extended` also for one whose model is older than the epochs it was given later.
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
    """Epochs in the latest checkpoint; 0 where there is none that can be read."""
    try:
        name = (folder / "checkpoint" / "latest").read_text(encoding="utf-8").strip()
        return int(read_json(folder / "checkpoint" / name / "state.json", how="")["values"]["epoch"])
    except (OSError, UserError, ValueError, LookupError, TypeError):
        return 0
