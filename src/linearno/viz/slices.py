"""What the heads of a model attend to. Axes: L layers, H heads, N points, X coordinates, M slices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.viz.fields import FIELD, Grid, View, shape_of, show_only
from linearno.viz.mesh import corners, is_straight, nearest_points
from linearno.viz.style import FONT, WIDTH, dress, legend_below, literal, new_figure, run_color, whole_numbers

Coords = Float[ndarray, "N X"]

_STRONG_THEN_LIGHT = [*range(0, 14, 2), 16, 18, *range(1, 14, 2), 17, 19]  # tab20 without its two greys
PIXELS = 160  # across a panel of scattered points
CATEGORIES = ListedColormap([*(mpl.colormaps["tab20"](i) for i in _STRONG_THEN_LIGHT), "#c4c4c4"])


@dataclass(frozen=True)
class RankSet:
    """One run's rank of the attention kernel φψᵀ in each head, and M, which bounds it."""

    name: str
    color: int
    rank: Float[ndarray, "L H"]
    slices: int


def dominant_slices_figure(
    coords: Coords, dominant: Integer[ndarray, "L H N"], *, grid: Grid = None, view: View = None
) -> Figure:
    """Layers by heads: each point in the colour of the slice with the largest weight there.

    Within a panel the slices that win at most points get a colour each, the others share grey.
    """
    return _small_multiples(coords, np.apply_along_axis(_by_size, -1, dominant), grid, view, _categories)


def slice_weights_figure(
    coords: Coords, weights: Float[ndarray, "L H N"], *, grid: Grid = None, view: View = None
) -> Figure:
    """Layers by heads: the weight of one slice at each point, from zero to the panel's largest."""
    return _small_multiples(coords, weights, grid, view, _from_zero)


def rank_figure(runs: Sequence[RankSet]) -> Figure:
    """Rank against layer: a dot for each head, a line for their mean, dashes for the bound M."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    for run in runs:
        color, layers = run_color(run.color), np.arange(1, len(run.rank) + 1)
        heads = run.rank.shape[1]
        axes.scatter(np.repeat(layers, heads), run.rank.ravel(), s=14, color=color, alpha=0.4)
        axes.plot(
            layers, run.rank.mean(axis=1), "-o", color=color, label=literal(f"{run.name}: mean of heads")
        )
    for slices in sorted({run.slices for run in runs}):
        axes.axhline(slices, color="#666666", linestyle="--", label=f"upper bound M = {slices}")
    dress(axes, x="layer", y="rank of the attention kernel", grid=True)
    axes.set_ylim(0, 1.08 * max(run.slices for run in runs))
    whole_numbers(axes.xaxis)
    legend_below(figure, axes)
    return figure


def _by_size(dominant: Integer[ndarray, "N"]) -> Integer[ndarray, "N"]:
    """Slices renumbered within a panel, the one that wins at most points first; the tail shares a number."""
    _, place, count = np.unique(dominant, return_inverse=True, return_counts=True)
    rank = np.empty(len(count), dtype=int)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(count))
    return np.minimum(rank[place], CATEGORIES.N - 1)


def _categories(values: ndarray) -> dict[str, Any]:
    return {"cmap": CATEGORIES, "vmin": -0.5, "vmax": CATEGORIES.N - 0.5}


def _from_zero(values: ndarray) -> dict[str, Any]:
    return {"cmap": FIELD, "vmin": 0, "vmax": float(values.max()) or 1.0}


def _small_multiples(
    coords: Coords, values: ndarray, grid: Grid, view: View, look: Callable[[ndarray], dict[str, Any]]
) -> Figure:
    """A bare panel for each layer (row) and head (column), placed by hand: layout engines are slow here."""
    layers, heads, _ = values.shape
    plane = _plane(coords)
    draw = _painter(plane, grid if coords.shape[1] == 2 else None)
    ratio, equal = shape_of(plane, view)
    width = max(WIDTH, heads + 0.6)
    font = FONT * width / WIDTH  # a wider figure is shown smaller
    left, top = 2.4 * font / 72, 2 * font / 72
    row = (width - left) / heads * ratio
    height = layers * row + top
    low = row < 4 * font / 72  # no room for a word on its side
    figure = Figure(figsize=(width, height), facecolor="white")
    place = {"left": left / width, "right": 0.995, "bottom": 0.005, "top": 1 - top / height}
    gaps = {"wspace": 0.06, "hspace": 0.06}
    panels = figure.subplots(layers, heads, squeeze=False, gridspec_kw={**place, **gaps})
    for (layer, head), axes in np.ndenumerate(panels):
        draw(axes, values[layer, head], look(values[layer, head]))
        axes.set(xticks=[], yticks=[], aspect="equal" if equal else "auto")
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=font)
        if head == 0:
            words, turn = (f"{layer + 1}", "horizontal") if low else (f"layer {layer + 1}", "vertical")
            axes.set_ylabel(words, fontsize=font, rotation=turn, ha="right" if low else "center")
    show_only(list(panels.flat), view)
    return figure


def _painter(plane: Float[ndarray, "N 2"], grid: Grid) -> Callable[[Axes, ndarray, dict[str, Any]], None]:
    """What draws a field in a panel: cells of a grid, or of the points nearest to each pixel.

    Never triangles: they would mix categories. The geometry is worked out once for all panels. The points of
    a curved grid lie on its outline, as on a wing, and nothing is drawn beyond it.
    """
    if grid is not None and len(grid) == 2:
        nodes = [axis.reshape(grid) for axis in plane.T]
        x, y = (corners(axis, within=not is_straight(*nodes)) for axis in nodes)

        def cells(axes: Axes, field: ndarray, look: dict[str, Any]) -> None:
            axes.pcolormesh(x, y, field.reshape(grid), **look)

        return cells
    index = nearest_points(plane, PIXELS)

    def pixels(axes: Axes, field: ndarray, look: dict[str, Any]) -> None:
        axes.imshow(np.ma.masked_array(field[index], index < 0), origin="lower", **look)

    return pixels


def _plane(coords: Coords) -> Float[ndarray, "N 2"]:
    """The two widest coordinates; one coordinate alone becomes a strip."""
    if coords.shape[1] == 1:
        return np.column_stack([coords[:, 0], np.zeros_like(coords[:, 0])])
    widest = np.sort(np.argsort(-np.ptp(coords, axis=0), kind="stable")[:2])
    return coords[:, widest]
