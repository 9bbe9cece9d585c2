"""Figures of measurements: errors and costs against the number of points."""

from collections.abc import Sequence
from math import ceil

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from linearno.viz.style import RUN_COLORS, format_axes, legend_below, new_figure, plain_log_ticks, run_color


def convergence_figure(
    sizes: Sequence[int],
    errors: Sequence[float],
    *,
    slope: float,
    spread: Sequence[tuple[float, float]] | None = None,
    error_label: str = "relative L2 error (dimensionless)",
) -> Figure:
    """Error against N on two log axes, with the fitted N^slope and the N^(−1/2) of Theorem 1.

    Hu et al. (2026), Theorem 1: attention over N random points is a Monte Carlo estimate of an integral
    over the domain. `spread` holds the lower and the upper end of a bar at each size.
    """
    figure = new_figure(4.4)
    axes = figure.subplots()
    color = RUN_COLORS[0]
    if spread is None:
        axes.plot(sizes, errors, "o", color=color, label="measured")
    else:
        bars = np.abs(np.transpose(spread) - np.asarray(errors))
        axes.errorbar(sizes, errors, bars, fmt="o", color=color, capsize=4, label="measured")
    axes.plot(sizes, _power(sizes, errors, slope), color=color, label=f"fit: $N^{{{slope:.2f}}}$")
    axes.plot(sizes, _power(sizes, errors, -0.5), "--", color="#666666", label="theory: $N^{-1/2}$")
    axes.set(xscale="log", yscale="log")
    some = sizes[:: ceil(len(sizes) / 9)]
    axes.set_xticks(some, [str(size) for size in some])
    axes.xaxis.set_minor_locator(NullLocator())
    plain_log_ticks(axes.yaxis)
    format_axes(axes, x="number of points N", y=error_label, grid=True)
    legend_below(figure, axes)
    return figure


def _power(sizes: Sequence[int], errors: Sequence[float], slope: float) -> np.ndarray:
    """c N^slope through the middle of the measured points, in the log plane."""
    log_n = np.log(sizes)
    return np.exp(np.log(errors).mean() + slope * (log_n - log_n.mean()))


def growth_figure(
    sizes: Sequence[int],
    seconds: Sequence[float],
    gigabytes: Sequence[float] | None,
    *,
    exponent: float,
    fitted_from: int = 0,
) -> Figure:
    """Time against points on log axes with its power, fitted from some size on; below it memory, where it was
    measured."""
    panels = 1 if gigabytes is None else 2
    figure = new_figure(2.6 + 2.2 * panels)
    drawn = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    large, slow = (np.asarray(part)[np.asarray(sizes) >= fitted_from] for part in (sizes, seconds))
    centre = np.exp(np.log(slow).mean()) * (large / np.exp(np.log(large).mean())) ** exponent
    drawn[0].plot(sizes, seconds, "o", color=run_color(0), label="measured")
    drawn[0].plot(large, centre, color=run_color(0), label=f"fit: $N^{{{exponent:.2f}}}$")
    format_axes(drawn[0], y="time (s)", grid=True)
    if gigabytes is not None:
        drawn[1].plot(sizes, gigabytes, "o-", color=run_color(1), label="memory")
        format_axes(drawn[1], y="memory beside the mesh (GB)", grid=True)
    for axes in drawn:
        axes.set(xscale="log", yscale="log")
        plain_log_ticks(axes.yaxis)
    format_axes(drawn[-1], x="number of points N", y=drawn[-1].get_ylabel(), grid=True)
    legend_below(figure, drawn[0])
    return figure
