"""Training curves and errors of several runs in one figure. Axes: E epochs, S samples, T frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.viz.style import (
    escape_mathtext,
    format_axes,
    integer_ticks,
    legend_below,
    new_figure,
    plain_log_ticks,
    run_color,
)

LOG_SCALE_RATIO = 10  # ratio of largest to smallest value above which an axis is logarithmic
MAX_BASELINE_RATIO = 300  # ratio to the largest error above which a baseline is listed but not drawn


@dataclass(frozen=True)
class TrainingCurve:
    """Training curves of one run.

    Args:
        name: name of the run in the legend.
        color: index of the run, which selects the same colour in all figures.
        epochs: (E,) epochs, from 1.
        loss: (E,) training loss.
        lr: (E,) learning rate.
        validation: (E,) validation error, if there is one.
    """

    name: str
    color: int
    epochs: Integer[ndarray, "E"]
    loss: Float[ndarray, "E"]
    lr: Float[ndarray, "E"]
    validation: Float[ndarray, "E"] | None = None


@dataclass(frozen=True)
class ErrorSet:
    """Errors of one run by sample, their median, and the error of the mean-field baseline."""

    name: str
    color: int
    errors: Float[ndarray, "S"]
    median: float
    baseline: float | None = None


@dataclass(frozen=True)
class FrameErrors:
    """Mean relative L2 errors of one run by predicted frame."""

    name: str
    color: int
    errors: Float[ndarray, "T"]


def training_figure(runs: Sequence[TrainingCurve]) -> Figure:
    """Loss and validation error on a log axis, and learning rate below, against epochs."""
    figure = new_figure(5.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for run in runs:
        style = {"color": run_color(run.color), "marker": "." if len(run.epochs) < 30 else ""}
        above.plot(run.epochs, run.loss, label=escape_mathtext(run.name), **style)
        if run.validation is not None:
            name = escape_mathtext(f"{run.name}, validation")
            above.plot(run.epochs, run.validation, linestyle="--", label=name, **style)
        below.plot(run.epochs, run.lr, **style)
    above.set_yscale("log")
    plain_log_ticks(above.yaxis)
    format_axes(above, y="loss per sample", grid=True)
    format_axes(below, x="epoch", y="learning rate", grid=True)
    below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    integer_ticks(below.xaxis)
    legend_below(figure, above)
    return figure


def error_figure(runs: Sequence[ErrorSet], *, split: str = "test", metric: str = "relative L2") -> Figure:
    """Histogram of the errors of each run in shared bins, with medians and the mean-field baseline."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    errors = [run.errors[np.isfinite(run.errors)] for run in runs]
    baselines = sorted({run.baseline for run in runs if run.baseline is not None and isfinite(run.baseline)})
    largest = max((float(values.max()) for values in errors if len(values)), default=1.0)
    near = [baseline for baseline in baselines if baseline <= MAX_BASELINE_RATIO * largest]
    bins, log = _bins(np.concatenate(errors), near)
    for run, values in zip(runs, errors, strict=True):
        if not len(values):
            continue
        color, name = run_color(run.color), f"{run.name}: median {run.median:.3g}"
        axes.hist(values, list(bins), color=color, alpha=0.35)
        axes.hist(values, list(bins), color=color, histtype="step", linewidth=1.5)
        axes.axvline(run.median, color=color, linestyle="--", label=escape_mathtext(name))
    for baseline in baselines:
        _draw_baseline(axes, baseline, inside=baseline in near)
    if log:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    format_axes(axes, x=f"{metric} on the {split} split", y="samples", grid=True)
    integer_ticks(axes.yaxis)
    legend_below(figure, axes)
    return figure


def error_over_time_figure(
    runs: Sequence[FrameErrors], *, split: str = "test", autoregressive: bool = True
) -> Figure:
    """Error of each run against the frame; `autoregressive` labels frames as steps of a rollout."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    for run in runs:
        steps = np.arange(1, len(run.errors) + 1)
        marker = "o" if len(steps) < 30 else ""
        name = f"{run.name}: {run.errors[0]:.3g} to {run.errors[-1]:.3g}"
        axes.plot(
            steps,
            run.errors,
            color=run_color(run.color),
            marker=marker,
            markersize=4,
            label=escape_mathtext(name),
        )
    errors = np.concatenate([run.errors for run in runs])
    errors = errors[np.isfinite(errors)]
    if len(errors) and errors.max() > LOG_SCALE_RATIO * errors.min() > 0:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    across = "step (frames after the last known one)" if autoregressive else "frame"
    format_axes(axes, x=across, y=f"mean relative L2, {split} split", grid=True)
    integer_ticks(axes.xaxis)
    legend_below(figure, axes)
    return figure


def _bins(
    values: Float[ndarray, "S"], baselines: Sequence[float], count: int = 24
) -> tuple[Float[ndarray, "edges"], bool]:
    """Bin edges, and whether the axis is logarithmic."""
    if not len(values):
        return np.linspace(0, 1, count + 1), False
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = (0.9 * low, 1.1 * high) if low > 0 else (0.0, 1.0)
    if low > 0 and max(high, *baselines, 0) > LOG_SCALE_RATIO * low:
        return np.geomspace(low, high, count + 1), True
    return np.linspace(low, high, count + 1), False


def _draw_baseline(axes: Axes, baseline: float, *, inside: bool) -> None:
    label = f"mean field: {baseline:.3g}"
    if inside:
        axes.axvline(baseline, color="#666666", linestyle=":", linewidth=2, label=label)
    else:
        axes.plot([], [], " ", label=f"{label} (beyond the right edge)")
