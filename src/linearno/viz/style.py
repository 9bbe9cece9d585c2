"""Style of figures: readable at a width of 390 px, one colour for each run.

Figures are created without pyplot, so there is no global state and nothing to close.
"""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

WIDTH = 5.6  # inches; on a page 390 px wide, 12 points are then 11 px
FONT = 12
RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this size in inches, with constrained layout."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def run_color(index: int) -> str:
    """The colour of the run at `index`, the same in every figure of a page."""
    return RUN_COLORS[index % len(RUN_COLORS)]


def escape_mathtext(text: str) -> str:
    """Escape `text` for matplotlib: `$` starts no mathtext, a leading `_` does not hide a legend entry."""
    plain = text.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def label_with_unit(name: str, unit: str) -> str:
    """A label with its unit; the name alone for a dimensionless quantity."""
    return name if unit in ("", "dimensionless") else f"{name} ({unit})"


def format_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: bool = False) -> None:
    """Set title, labels, font sizes and grid lines of a panel."""
    axes.set_title(escape_mathtext(title), fontsize=FONT)
    axes.set_xlabel(escape_mathtext(x), fontsize=FONT)
    axes.set_ylabel(escape_mathtext(y), fontsize=FONT)
    axes.tick_params(labelsize=FONT - 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set_fontsize(FONT - 1)
    if grid:
        axes.set_axisbelow(True)
        axes.grid(True, color="#dddddd", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Axes) -> None:
    """Add a legend below the panels."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels), default=0) < 26 else 1
    if labels:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, fontsize=FONT - 1, frameon=False
        )


def plain_log_ticks(axis: Axis) -> None:
    """Label a log axis at 1, 2 and 5 of each decade, without exponents."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def integer_ticks(axis: Axis) -> None:
    """Restrict ticks to integers."""
    axis.set_major_locator(MaxNLocator(integer=True))
