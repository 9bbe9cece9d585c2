"""How a cost grows with the number of points."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from linearno.viz.style import dress, legend_below, new_figure, plain_log_ticks, run_color


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
    dress(drawn[0], y="time (s)", grid=True)
    if gigabytes is not None:
        drawn[1].plot(sizes, gigabytes, "o-", color=run_color(1), label="memory")
        dress(drawn[1], y="memory beside the mesh (GB)", grid=True)
    for axes in drawn:
        axes.set(xscale="log", yscale="log")
        plain_log_ticks(axes.yaxis)
    dress(drawn[-1], x="number of points N", y=drawn[-1].get_ylabel(), grid=True)
    legend_below(figure, drawn[0])
    return figure
