"""How figures look: readable where they are 390 px wide, one colour for each run.

Figures are made as objects, never through pyplot: nothing global is changed and nothing has to be closed.
"""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

WIDTH = 5.6  # inches; on a page 390 px wide, 12 points are then 11 px
FONT = 12
RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this many inches that keeps its labels apart."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def run_color(index: int) -> str:
    """The colour of the run at `index`, the same in every figure of a page."""
    return RUN_COLORS[index % len(RUN_COLORS)]


def literal(text: str) -> str:
    """`text` as matplotlib shows it letter by letter: no mathematics, not left out of a legend."""
    plain = text.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def quantity(name: str, unit: str) -> str:
    """A label that says what and in which unit."""
    return f"{name} ({unit})"


def dress(axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: bool = False) -> None:
    """Title, labels and font sizes of one panel."""
    axes.set_title(literal(title), fontsize=FONT)
    axes.set_xlabel(literal(x), fontsize=FONT)
    axes.set_ylabel(literal(y), fontsize=FONT)
    axes.tick_params(labelsize=FONT - 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set_fontsize(FONT - 1)
    if grid:
        axes.set_axisbelow(True)
        axes.grid(True, color="#dddddd", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend under the panels, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels), default=0) < 26 else 1
    if labels:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, fontsize=FONT - 1, frameon=False
        )


def plain_log_ticks(axis: Axis) -> None:
    """1, 2 and 5 of each decade of a log axis, written out."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only, for counts."""
    axis.set_major_locator(MaxNLocator(integer=True))
