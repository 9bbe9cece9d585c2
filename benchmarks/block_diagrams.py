"""Draw the blocks of the models, one SVG for each family: `python -m benchmarks block-diagrams`."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib as mpl
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from linearno.cli.shared import console, user_errors
from linearno.core.config import read_yaml_values

ROWS = Path(__file__).with_suffix(".yaml")
INK = "#444444"
COLOURS = {"~": "#d6e6f5", "*": "#fde2c4", "": "#ffffff"}
HEIGHT, GAP, ROW_STEP, LETTER, FONT_SIZE = 0.36, 0.2, 0.95, 0.083, 8.5  # inches, but the last: points


class Span(NamedTuple):
    """Horizontal extent of a step."""

    left: float
    right: float

    @property
    def centre(self) -> float:
        return (self.left + self.right) / 2


@dataclass(frozen=True)
class Step:
    """A step of a row: its label, what it holds, and the earlier step that it adds, if any."""

    text: str
    kind: str = ""
    adds: int | None = None

    @classmethod
    def read(cls, step: str) -> "Step":
        if step[0] == "+" and step[1:].isdigit():
            return cls("+", adds=int(step[1:]))
        kind = step[-1] if step[-1] in COLOURS else ""
        return cls(step.removesuffix(kind), kind)

    @property
    def width(self) -> float:
        return HEIGHT * 0.75 if self.adds is not None else LETTER * len(self.text) + 0.18


def read_rows() -> dict[str, dict[str, str]]:
    """The rows of every family, by family and model."""
    found: dict[str, dict[str, str]] = read_yaml_values(ROWS)
    return found


def draw_family(rows: dict[str, str]) -> Figure:
    """A figure with a row for each model of a family."""
    steps = {name: [Step.read(step) for step in row.split(" | ")] for name, row in rows.items()}
    width = max(sum(step.width + GAP for step in row) for row in steps.values())
    figure = Figure((width, ROW_STEP * len(rows)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(-ROW_STEP * len(rows), 0))
    axes.axis("off")
    for number, (name, row) in enumerate(steps.items()):
        _draw_row(axes, name, row, -ROW_STEP * (number + 1) + 0.08 + HEIGHT / 2)
    return figure


def _draw_row(axes: Axes, name: str, steps: list[Step], y: float) -> None:
    axes.text(GAP / 2, y + HEIGHT / 2 + 0.13, name, fontsize=FONT_SIZE + 0.5, weight="bold", va="bottom")
    spans: list[Span] = []
    left = GAP / 2
    for step in steps:
        spans.append(Span(left, left + step.width))
        left = spans[-1].right + GAP
    for before, after in pairwise(spans):
        _arrow(axes, [(before.right, y), (after.left, y)])
    for step, span in zip(steps, spans, strict=True):
        radius = HEIGHT / 2 * 0.75 if step.adds is not None else 0.07
        height = HEIGHT * (0.75 if step.adds is not None else 1)
        corner = (span.left, y - height / 2)
        style = f"round,pad=0,rounding_size={radius}"
        box = FancyBboxPatch(
            corner, step.width, height, boxstyle=style, fc=COLOURS[step.kind], ec=INK, lw=0.8
        )
        axes.add_patch(box)
        axes.text(span.centre, y, step.text, fontsize=FONT_SIZE, ha="center", va="center")
        if step.adds is not None:
            source, top = spans[step.adds], y + HEIGHT / 2 + 0.1
            start = (source.right + GAP / 2, y)
            _arrow(axes, [start, (start[0], top), (span.centre, top), (span.centre, y + height / 2)])


def _arrow(axes: Axes, points: list[tuple[float, float]]) -> None:
    """A line through the points with a head at its end."""
    axes.plot(*zip(*points[:-1], strict=True), color=INK, lw=0.8, solid_joinstyle="miter")
    arrow = FancyArrowPatch(
        *points[-2:], arrowstyle="-|>", mutation_scale=7, lw=0.8, shrinkA=0, shrinkB=0, color=INK
    )
    axes.add_patch(arrow)


def block_diagrams(
    out: Annotated[Path, typer.Option(help="folder of the figures")] = Path("docs/figures/blocks"),
) -> None:
    """Draw the blocks of the models, one SVG for each family.

    Example:

      python -m benchmarks block-diagrams
    """
    with user_errors(), mpl.rc_context({"svg.hashsalt": "linearno", "font.family": "DejaVu Sans"}):
        out.mkdir(parents=True, exist_ok=True)
        for family, rows in read_rows().items():
            path = out / f"{family}.svg"
            draw_family(rows).savefig(path, metadata={"Date": None}, facecolor="white")
            console.print(path)
