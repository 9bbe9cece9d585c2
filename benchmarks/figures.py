"""Plot errors and costs against the number of points."""

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
    over the domain.

    Args:
        sizes: numbers of points N.
        errors: error at each size.
        slope: fitted exponent.
        spread: lower and upper end of the error bar at each size.
        error_label: label of the error axis.
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
    ticks = sizes[:: ceil(len(sizes) / 9)]
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    plain_log_ticks(axes.yaxis)
    format_axes(axes, x="number of points N", y=error_label, grid=True)
    legend_below(figure, axes)
    return figure


def _power(sizes: Sequence[int], errors: Sequence[float], slope: float) -> np.ndarray:
    """c N^slope through the mean of the logarithms of sizes and errors."""
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
    """Time against points on log axes with a fitted power N^exponent; memory in a second panel if given.

    Args:
        sizes: numbers of points N.
        seconds: time at each size.
        gigabytes: memory at each size.
        exponent: fitted exponent of the time.
        fitted_from: smallest size used by the fit.
    """
    panels = 1 if gigabytes is None else 2
    figure = new_figure(2.6 + 2.2 * panels)
    panel_axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    fitted_sizes, fitted_seconds = (
        np.asarray(part)[np.asarray(sizes) >= fitted_from] for part in (sizes, seconds)
    )
    fit = (
        np.exp(np.log(fitted_seconds).mean())
        * (fitted_sizes / np.exp(np.log(fitted_sizes).mean())) ** exponent
    )
    panel_axes[0].plot(sizes, seconds, "o", color=run_color(0), label="measured")
    panel_axes[0].plot(fitted_sizes, fit, color=run_color(0), label=f"fit: $N^{{{exponent:.2f}}}$")
    format_axes(panel_axes[0], y="time (s)", grid=True)
    if gigabytes is not None:
        panel_axes[1].plot(sizes, gigabytes, "o-", color=run_color(1), label="memory")
        format_axes(panel_axes[1], y="memory without the mesh (GB)", grid=True)
    for axes in panel_axes:
        axes.set(xscale="log", yscale="log")
        plain_log_ticks(axes.yaxis)
    format_axes(panel_axes[-1], x="number of points N", y=panel_axes[-1].get_ylabel(), grid=True)
    legend_below(figure, panel_axes[0])
    return figure
