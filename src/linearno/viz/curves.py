"""Training and errors of several runs in one figure. Axes: E epochs, S samples, T frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.viz.style import (
    dress,
    legend_below,
    literal,
    new_figure,
    plain_log_ticks,
    run_color,
    whole_numbers,
)

LOG_SPREAD = 10  # values that differ by more than this factor are drawn on a log axis
FAR = 300  # a baseline this many times the largest error would squeeze the histogram: it is only named


@dataclass(frozen=True)
class TrainingCurve:
    """One run: `color` is its place in the page, so that a run keeps its colour."""

    name: str
    color: int
    epochs: Integer[ndarray, "E"]
    loss: Float[ndarray, "E"]
    lr: Float[ndarray, "E"]
    validation: Float[ndarray, "E"] | None = None


@dataclass(frozen=True)
class ErrorSet:
    """One run's error of each sample, and that of predicting the mean field."""

    name: str
    color: int
    errors: Float[ndarray, "S"]
    median: float
    baseline: float | None = None


@dataclass(frozen=True)
class FrameErrors:
    """One run's mean relative L2 of each frame that it predicted, in the order of time."""

    name: str
    color: int
    errors: Float[ndarray, "T"]


def training_figure(runs: Sequence[TrainingCurve]) -> Figure:
    """Loss (and validation) on a log axis above the learning rate, against epochs."""
    figure = new_figure(5.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for run in runs:
        look = {"color": run_color(run.color), "marker": "." if len(run.epochs) < 30 else ""}
        above.plot(run.epochs, run.loss, label=literal(run.name), **look)
        if run.validation is not None:
            name = literal(f"{run.name}, validation")
            above.plot(run.epochs, run.validation, linestyle="--", label=name, **look)
        below.plot(run.epochs, run.lr, **look)
    above.set_yscale("log")
    plain_log_ticks(above.yaxis)
    dress(above, y="loss per sample", grid=True)
    dress(below, x="epoch", y="learning rate", grid=True)
    below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    whole_numbers(below.xaxis)
    legend_below(figure, above)
    return figure


def error_figure(runs: Sequence[ErrorSet], *, split: str = "test", metric: str = "relative L2") -> Figure:
    """Histogram of the errors of each run over shared bins, with medians and the mean-field baseline."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    errors = [run.errors[np.isfinite(run.errors)] for run in runs]
    baselines = sorted({run.baseline for run in runs if run.baseline is not None and isfinite(run.baseline)})
    largest = max((float(values.max()) for values in errors if len(values)), default=1.0)
    near = [baseline for baseline in baselines if baseline <= FAR * largest]
    bins, log = _bins(np.concatenate(errors), near)
    for run, values in zip(runs, errors, strict=True):
        if not len(values):
            continue
        color, name = run_color(run.color), f"{run.name}: median {run.median:.3g}"
        axes.hist(values, list(bins), color=color, alpha=0.35)
        axes.hist(values, list(bins), color=color, histtype="step", linewidth=1.5)
        axes.axvline(run.median, color=color, linestyle="--", label=literal(name))
    for baseline in baselines:
        _draw_baseline(axes, baseline, inside=baseline in near)
    if log:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    dress(axes, x=f"{metric} on the {split} split (dimensionless)", y="samples", grid=True)
    whole_numbers(axes.yaxis)
    legend_below(figure, axes)
    return figure


def error_over_time_figure(
    runs: Sequence[FrameErrors], *, split: str = "test", marches: bool = True
) -> Figure:
    """How the error grows from frame to frame, of several runs; where none of them `marches`, no frame is
    known."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    for run in runs:
        steps = np.arange(1, len(run.errors) + 1)
        marker = "o" if len(steps) < 30 else ""
        name = f"{run.name}: {run.errors[0]:.3g} to {run.errors[-1]:.3g}"
        axes.plot(
            steps, run.errors, color=run_color(run.color), marker=marker, markersize=4, label=literal(name)
        )
    errors = np.concatenate([run.errors for run in runs])
    errors = errors[np.isfinite(errors)]
    if len(errors) and errors.max() > LOG_SPREAD * errors.min() > 0:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    across = "step (frames after the last known one)" if marches else "frame"
    dress(axes, x=across, y=f"mean relative L2, {split} split", grid=True)
    whole_numbers(axes.xaxis)
    legend_below(figure, axes)
    return figure


def _bins(
    values: Float[ndarray, "S"], baselines: Sequence[float], count: int = 24
) -> tuple[Float[ndarray, "edges"], bool]:
    """Edges of the bins, and whether errors and baselines together call for a log axis."""
    if not len(values):
        return np.linspace(0, 1, count + 1), False
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = (0.9 * low, 1.1 * high) if low > 0 else (0.0, 1.0)
    if low > 0 and max(high, *baselines, 0) > LOG_SPREAD * low:
        return np.geomspace(low, high, count + 1), True
    return np.linspace(low, high, count + 1), False


def _draw_baseline(axes: Axes, baseline: float, *, inside: bool) -> None:
    label = f"mean field: {baseline:.3g}"
    if inside:
        axes.axvline(baseline, color="#666666", linestyle=":", linewidth=2, label=label)
    else:
        axes.plot([], [], " ", label=f"{label} (beyond the right edge)")
