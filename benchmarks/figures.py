"""Plot errors and costs against the number of points."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from linearno.viz.style import format_axes, legend_below, new_figure, plain_log_ticks, run_color


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
