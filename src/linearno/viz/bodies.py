"""Three-dimensional pictures of bodies, with pyvista off screen, and scatter plots of their forces.

Axes: V vertices, P polygons, R rows and Q columns of pictures.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.core.optional_deps import require_extra

Image = UInt8[ndarray, "H W 3"]

VIEWS = {  # camera position; x to the side, y upwards, z along the flow
    "front": (-6.6, 2.3, -5.0),
    "rear": (-6.6, 2.3, 5.0),
    "side": (-8.4, 1.2, -1.0),
    "below": (-5.4, -4.6, -4.4),
}
TILE = (420, 260)  # pixels


class Body(NamedTuple):
    """A surface to draw.

    Args:
        points: vertices (V, 3).
        polygons: corners of the polygons.
        values: value at each vertex; None for a plain body.
        title: text above the picture.
    """

    points: Float[ndarray, "V 3"]
    polygons: Int[ndarray, "P K"]
    values: Float[ndarray, "V"] | None = None
    title: str = ""


def draw_body(
    body: Body,
    view: str = "front",
    *,
    limits: tuple[float, float] | None = None,
    colours: str = "viridis",
    flat: bool = False,
    size: tuple[int, int] = TILE,
) -> Image:
    """Picture of a body from a fixed camera.

    Args:
        body: surface and values.
        view: key of `VIEWS`.
        limits: values at the ends of the colour scale; the smallest and largest value by default.
        colours: matplotlib colour map.
        flat: colour each polygon by its first corner, for values that are numbers of classes.
        size: width and height in pixels.
    """
    require_extra("pyvista", "mesh")
    pyvista: Any = import_module("pyvista")

    corners = body.polygons.shape[1]
    faces = np.concatenate([np.full((len(body.polygons), 1), corners), body.polygons], axis=1)
    mesh = pyvista.PolyData(body.points.astype(float), faces.ravel())
    plotter = pyvista.Plotter(off_screen=True, window_size=list(size))
    plotter.set_background("white")
    if body.values is None:
        plotter.add_mesh(mesh, color="lightsteelblue", smooth_shading=True, split_sharp_edges=False)
    else:
        if flat:
            mesh.cell_data["values"] = body.values[body.polygons[:, 0]]
        else:
            mesh.point_data["values"] = body.values
        options = {"cmap": colours, "clim": limits, "ambient": 0.4, "smooth_shading": not flat}
        plotter.add_mesh(mesh, scalars="values", show_scalar_bar=False, **options)
    centre = (body.points.min(axis=0) + body.points.max(axis=0)) / 2
    plotter.camera_position = [tuple(centre + np.array(VIEWS[view])), tuple(centre), (0, 1, 0)]
    plotter.camera.zoom(1.5)
    image = np.asarray(plotter.screenshot(return_img=True))
    plotter.close()
    return image[..., :3].copy()


def picture_table(
    images: Sequence[Sequence[Image]], titles: Sequence[str] = (), rows: Sequence[str] = ()
) -> Figure:
    """Figure with a table of pictures, titles above the columns and names beside the rows."""
    height, width, _ = images[0][0].shape
    figure = Figure(figsize=(len(images[0]) * width / 150, len(images) * height / 150), layout="constrained")
    axes = figure.subplots(len(images), len(images[0]), squeeze=False)
    for row, line in enumerate(images):
        for column, image in enumerate(line):
            at = axes[row][column]
            at.imshow(image)
            at.set_xticks([])
            at.set_yticks([])
            at.set_frame_on(False)
            if row == 0 and titles:
                at.set_title(titles[column], fontsize=9)
            if column == 0 and rows:
                at.set_ylabel(rows[row], fontsize=9)
    return figure


def compare_bodies(
    truth: Body, predicted: Float[ndarray, "V"], *, unit: str, views: Sequence[str] = ("front", "rear")
) -> Figure:
    """Truth, prediction and error on a body: views in rows, one colour scale for truth and prediction."""
    assert truth.values is not None
    ends = float(truth.values.min()), float(truth.values.max())
    error = predicted - truth.values
    most = max(float(np.abs(error).max()), 1e-12)
    shown = [
        (truth, ends, "viridis"),
        (truth._replace(values=predicted), ends, "viridis"),
        (truth._replace(values=error), (-most, most), "RdBu_r"),
    ]
    images = [
        [draw_body(body, view, limits=limits, colours=colours) for body, limits, colours in shown]
        for view in views
    ]
    scale = f"{ends[0]:.3g} to {ends[1]:.3g} {unit}"
    titles = [f"truth, {scale}", f"prediction, {scale}", f"error, ±{most:.3g} {unit}"]
    return picture_table(images, titles, list(views))


def force_scatter(
    truth: Float[ndarray, "S"], predicted: Float[ndarray, "S"], *, name: str, correlation: float
) -> Figure:
    """Predicted against true coefficients of a test set, with the rank correlation."""
    figure = Figure(figsize=(4.2, 4), layout="constrained")
    at = figure.subplots()
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    at.plot(ends, ends, color="0.7", linewidth=1)
    at.plot(truth, predicted, ".", markersize=6)
    at.set_xlabel(f"{name}, solver")
    at.set_ylabel(f"{name}, model")
    at.set_title(f"rank correlation {correlation:.3f}, {len(truth)} bodies", fontsize=10)
    at.set_aspect("equal")
    return figure


def slice_figure(
    points: Float[ndarray, "N 3"],
    fields: dict[str, Float[ndarray, "N"]],
    outline: Float[ndarray, "V 3"],
    *,
    half_width: float = 0.2,
    unit: str,
) -> Figure:
    """Fields in the plane x = 0, from the points within `half_width` of it, and the outline of a body.

    All fields but an "error" share the colour scale of the first one.
    """
    first = next(iter(fields.values()))
    near = np.abs(points[:, 0]) < half_width
    figure = Figure(figsize=(8, 2.6 * len(fields)), layout="constrained")
    axes = figure.subplots(len(fields), 1, squeeze=False)[:, 0]
    for at, (title, values) in zip(axes, fields.items(), strict=True):
        most = np.abs(values[near]).max()
        ends = (-most, most) if title == "error" else (first[near].min(), first[near].max())
        scale = {"cmap": "RdBu_r" if title == "error" else "viridis", "vmin": ends[0], "vmax": ends[1]}
        drawn = at.scatter(points[near, 2], points[near, 1], c=values[near], s=6, linewidths=0, **scale)
        profile = outline[np.abs(outline[:, 0]) < half_width]
        at.plot(profile[:, 2], profile[:, 1], ".", color="black", markersize=2)
        at.set_title(title, fontsize=9)
        at.set_aspect("equal")
        figure.colorbar(drawn, ax=at, label=unit)
    return figure
