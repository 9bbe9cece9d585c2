"""Figures of the paper from the errors of runs."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from linearno.viz.style import (
    FONT,
    RUN_COLORS,
    escape_mathtext,
    format_axes,
    legend_below,
    new_figure,
    plain_log_ticks,
    run_color,
)

Series = Mapping[str, Mapping[str, float]]  # name → place → value


def svg_bytes(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def lines_figure(series: Series, *, x: str, y: str) -> Figure:
    """Values against a numeric setting, a line for each series."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    for index, (name, values) in enumerate(series.items()):
        places = sorted(values, key=float)
        axes.plot(
            [float(place) for place in places],
            [values[place] for place in places],
            "-o",
            color=run_color(index),
            label=escape_mathtext(name),
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({float(place) for values in series.values() for place in values})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.08 * max(max(values.values()) for values in series.values()))
    format_axes(axes, x=x, y=y, grid=True)
    legend_below(figure, axes)
    return figure


def radar_figure(series: Series, *, unit: str) -> Figure:
    """A polygon for each series; each axis is divided by its largest value, printed at its end."""
    spokes = list(dict.fromkeys(place for values in series.values() for place in values))
    complete = [place for place in spokes if all(place in values for values in series.values())]
    angles = np.linspace(0, 2 * np.pi, len(complete), endpoint=False)
    largest = {place: max(values[place] for values in series.values()) for place in complete}
    figure = new_figure(5.4)
    axes = figure.add_subplot(projection="polar")
    for index, (name, values) in enumerate(series.items()):
        radii = [values[place] / largest[place] for place in complete]
        axes.plot(
            [*angles, *angles[:1]],
            [*radii, *radii[:1]],
            "-o",
            color=run_color(index),
            label=escape_mathtext(name),
        )
    axes.set_xticks(angles, [f"{place}\n{largest[place]:.4f}" for place in complete], fontsize=FONT - 1)
    axes.tick_params(axis="x", pad=16)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "", "", ""])
    axes.set_ylim(0, 1.05)
    axes.set_title(f"{unit} as a share of the larger one, which is printed", fontsize=FONT, pad=24)
    legend_below(figure, axes)
    return figure


def complete_series(series: Mapping[str, Sequence[tuple[str, float | None]]]) -> Series:
    """Only the values that there are."""
    found = {name: {p: v for p, v in values if v is not None} for name, values in series.items()}
    return {name: values for name, values in found.items() if values}


def convergence_figure(
    sizes: Sequence[int],
    errors: Sequence[float],
    *,
    slope: float,
    spread: Sequence[tuple[float, float]] | None = None,
    error_label: str = "relative L2 error",
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
