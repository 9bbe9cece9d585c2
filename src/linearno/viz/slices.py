"""Figures of slice attention. Axes: L layers, H heads, N points, X coordinates, M slices."""

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

from linearno.viz.fields import FIELD_COLORMAP, Grid, View, apply_view, panel_aspect
from linearno.viz.mesh import cell_reach, corners, is_straight, nearest_points, outside_view
from linearno.viz.style import (
    FONT,
    WIDTH,
    escape_mathtext,
    format_axes,
    integer_ticks,
    legend_below,
    new_figure,
    run_color,
)

Coords = Float[ndarray, "N X"]
Cells = Integer[ndarray, "Q K"] | None  # corners of the cells of a plane mesh

_DARK_THEN_LIGHT = [*range(0, 14, 2), 16, 18, *range(1, 14, 2), 17, 19]  # indices in tab20, without greys
IMAGE_PIXELS = 160  # along the longer side of a panel of scattered points
CATEGORIES = ListedColormap([*(mpl.colormaps["tab20"](i) for i in _DARK_THEN_LIGHT), "#c4c4c4"])


@dataclass(frozen=True)
class RankSet:
    """Rank of the attention kernel φψᵀ in each head of a run, and its upper bound M (`slices`)."""

    name: str
    color: int
    rank: Float[ndarray, "L H"]
    slices: int


def dominant_slices_figure(
    coords: Coords,
    dominant: Integer[ndarray, "L H N"],
    *,
    grid: Grid = None,
    view: View = None,
    cells: Cells = None,
) -> Figure:
    """Map of the slice with the largest weight at each point, in a panel for each layer and head.

    In each panel, the most frequent slices get one colour each, the others share grey.
    """
    return _small_multiples(
        coords, np.apply_along_axis(_relabel_by_count, -1, dominant), grid, view, cells, _category_style
    )


def slice_weights_figure(
    coords: Coords,
    weights: Float[ndarray, "L H N"],
    *,
    grid: Grid = None,
    view: View = None,
    cells: Cells = None,
) -> Figure:
    """Map of the weight of one slice at each point, in a panel for each layer and head."""
    return _small_multiples(coords, weights, grid, view, cells, _zero_based_style)


def rank_figure(runs: Sequence[RankSet]) -> Figure:
    """Rank against layer: a dot for each head, a line for their mean, a dashed line for the bound M."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    for run in runs:
        color, layers = run_color(run.color), np.arange(1, len(run.rank) + 1)
        heads = run.rank.shape[1]
        axes.scatter(np.repeat(layers, heads), run.rank.ravel(), s=14, color=color, alpha=0.4)
        axes.plot(
            layers,
            run.rank.mean(axis=1),
            "-o",
            color=color,
            label=escape_mathtext(f"{run.name}: mean of heads"),
        )
    for slices in sorted({run.slices for run in runs}):
        axes.axhline(slices, color="#666666", linestyle="--", label=f"upper bound M = {slices}")
    format_axes(axes, x="layer", y="rank of the attention kernel", grid=True)
    axes.set_ylim(0, 1.08 * max(run.slices for run in runs))
    integer_ticks(axes.xaxis)
    legend_below(figure, axes)
    return figure


def _relabel_by_count(dominant: Integer[ndarray, "N"]) -> Integer[ndarray, "N"]:
    """Renumber the slices of a panel by decreasing frequency; the least frequent share the last number."""
    _, inverse, count = np.unique(dominant, return_inverse=True, return_counts=True)
    rank = np.empty(len(count), dtype=int)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(count))
    return np.minimum(rank[inverse], CATEGORIES.N - 1)


def _category_style(values: ndarray) -> dict[str, Any]:
    return {"cmap": CATEGORIES, "vmin": -0.5, "vmax": CATEGORIES.N - 0.5}


def _zero_based_style(values: ndarray) -> dict[str, Any]:
    return {"cmap": FIELD_COLORMAP, "vmin": 0, "vmax": float(values.max()) or 1.0}


def _small_multiples(
    coords: Coords,
    values: ndarray,
    grid: Grid,
    view: View,
    cells: Cells,
    style: Callable[[ndarray], dict[str, Any]],
) -> Figure:
    """A panel for each layer (row) and head (column), at computed positions: layout engines are slow here."""
    layers, heads, _ = values.shape
    plane = _project_to_plane(coords)
    draw = _panel_painter(plane, grid if coords.shape[1] == 2 else None, view, cells)
    ratio, equal = panel_aspect(plane, view)
    width = max(WIDTH, heads + 0.6)
    font = FONT * width / WIDTH  # a wider figure is scaled down on the page
    left, top = 2.4 * font / 72, 2 * font / 72
    row = (width - left) / heads * ratio
    height = layers * row + top
    is_low = row < 4 * font / 72  # too low for rotated text
    figure = Figure(figsize=(width, height), facecolor="white")
    place = {"left": left / width, "right": 0.995, "bottom": 0.005, "top": 1 - top / height}
    gaps = {"wspace": 0.06, "hspace": 0.06}
    panels = figure.subplots(layers, heads, squeeze=False, gridspec_kw={**place, **gaps})
    for (layer, head), axes in np.ndenumerate(panels):
        draw(axes, values[layer, head], style(values[layer, head]))
        axes.set(xticks=[], yticks=[], aspect="equal" if equal else "auto")
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=font)
        if head == 0:
            label, rotation = (f"{layer + 1}", "horizontal") if is_low else (f"layer {layer + 1}", "vertical")
            axes.set_ylabel(label, fontsize=font, rotation=rotation, ha="right" if is_low else "center")
    apply_view(list(panels.flat), view)
    return figure


def _panel_painter(
    plane: Float[ndarray, "N 2"], grid: Grid, view: View, cells: Cells
) -> Callable[[Axes, ndarray, dict[str, Any]], None]:
    """A function that draws a field in a panel, as cells of a grid or as the nearest point of each pixel.

    There is no interpolation, which would mix categories. The geometry is computed once for all panels. On a
    curved grid nothing is drawn beyond its outline, such as inside an airfoil; scattered points are drawn as
    far as their cells reach, if there are some, within `view`.
    """
    if grid is not None and len(grid) == 2:
        nodes = [axis.reshape(grid) for axis in plane.T]
        x, y = (corners(axis, within_outline=not is_straight(*nodes)) for axis in nodes)

        def grid_cells(axes: Axes, field: ndarray, style: dict[str, Any]) -> None:
            axes.pcolormesh(x, y, field.reshape(grid), **style)

        return grid_cells
    visible = np.arange(len(plane))
    if view is not None and len(view) == 2 and not (outside := outside_view(plane, view)).all():
        visible = np.flatnonzero(~outside)
    reach = None if cells is None else cell_reach(plane, cells)[visible]
    shown = plane[visible]
    index = nearest_points(shown, IMAGE_PIXELS, reach)
    corner, opposite = shown.min(axis=0), shown.max(axis=0)
    extent = (corner[0], opposite[0], corner[1], opposite[1]) if (corner < opposite).all() else None

    def pixels(axes: Axes, field: ndarray, style: dict[str, Any]) -> None:
        image = np.ma.masked_array(field[visible][index], index < 0)
        axes.imshow(image, origin="lower", extent=extent, **style)

    return pixels


def _project_to_plane(coords: Coords) -> Float[ndarray, "N 2"]:
    """The two coordinates with the largest extent; 1-D points become a line at zero height."""
    if coords.shape[1] == 1:
        return np.column_stack([coords[:, 0], np.zeros_like(coords[:, 0])])
    widest = np.sort(np.argsort(-np.ptp(coords, axis=0), kind="stable")[:2])
    return coords[:, widest]
