"""Runs side by side: a table, training curves, and the same test sample on one colour scale."""

import math
from collections.abc import Sequence
from typing import Any

from linearno.studio import engine
from linearno.studio.colors import scale_of
from linearno.studio.designs import LinePlot, Series
from linearno.studio.model import StudioModel
from linearno.studio.panels import MAX_PANELS, Panel, format_seconds
from linearno.studio.runs import StudioRun

MIN_LOSS = 1e-12


def table(runs: Sequence[StudioRun]) -> list[dict[str, Any]]:
    """A row for each run, as its folder is now."""
    rows = []
    for run in runs:
        content = run.read()
        metrics, history = content.metrics, content.history
        error = metrics.get(content.metric)
        mean = error.get("mean") if isinstance(error, dict) else None
        epochs = content.config.get("training", {}).get("epochs", "?")
        seconds = sum(record.seconds for record in history)
        rows.append(
            {
                "name": run.name,
                "model": content.config.get("model", {}).get("name")
                or content.card.get("model", {}).get("name", ""),
                "parameters": f"{metrics['parameters']:,}" if "parameters" in metrics else "",
                "error": "" if mean is None else f"{mean:.4f}",
                "epochs": f"{len(history)} / {epochs}",
                "time": format_seconds(seconds) if history else "",
                "status": "training" if run.training and history and len(history) != epochs else "finished",
            }
        )
    return rows


def curves(runs: Sequence[StudioRun]) -> LinePlot:
    """Training loss of each run against the epoch."""
    series = []
    for color, run in enumerate(runs):
        history = [record for record in run.read().history if math.isfinite(record.loss)]
        epochs, losses = (
            [float(record.epoch) for record in history],
            [max(record.loss, MIN_LOSS) for record in history],
        )
        series.append(Series(run.name, epochs, losses, color))
    return LinePlot("training loss", "epoch", "loss", series)


def side_by_side(model: StudioModel) -> list[Panel]:
    """The truth of a test sample and the predictions of all runs on the same problem, on one scale."""
    if (design := model.samples()) is None:
        return []
    column, truth, geometry = model.column(), design.truth(), model.sample_geometry(design)
    runs = [run for run in model.runs if run.bundle is not None and run.key == model.run.key][
        : MAX_PANELS - 1
    ]
    known, notes = [truth[:, column]], []
    for run in runs:
        fields = engine.compute(run, design)
        known.append(fields.prediction[:, column])
        notes.append("" if fields.relative_error is None else f"relative L2 {fields.relative_error:.3g}")
    scale = scale_of(known)
    titles = ["Truth", *(run.name for run in runs)]
    sample = f"test sample {design.index}"
    return [
        Panel(title, note, geometry, values, scale, model.label)
        for title, note, values in zip(titles, [sample, *notes], known, strict=True)
    ]
