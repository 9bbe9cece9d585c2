"""Warnings about predictions that a surrogate was not trained for. Axes: N points, X coordinates."""

import logging

import torch
from torch import Tensor

from linearno.data import box_of, outside_box

GRID_TOLERANCE = 1e-3  # between coordinates, in units of the extent

log = logging.getLogger(__name__)


def warn_outside(points: Tensor, training_points: Tensor, names: tuple[str, ...], what: str) -> None:
    """Log the number of points (…, X) outside the box of the training points (N, X).

    Args:
        points: to predict at.
        training_points: shared by all training samples.
        names: of the coordinates.
        what: a noun for the points.
    """
    box = box_of(training_points)
    if count := int(outside_box(points.to(box), box).sum()):
        sides = zip(names, *box.tolist(), strict=True)
        where = ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in sides)
        total = points.shape[:-1].numel()
        place = f"outside the box of the training points ({where})"
        log.warning("%d of %d %s lie %s: extrapolated", count, total, what, place)


def warn_of_another_grid(coords: Tensor, grid: Tensor) -> None:
    """Log that points (…, N, X) differ from those (N, X) of the grid that a model is bound to."""
    own, box = grid.to(coords), box_of(grid)
    near = GRID_TOLERANCE * float((box[1] - box[0]).max())
    if coords.shape[-2:] == own.shape[-2:] and not torch.allclose(coords, own, rtol=0, atol=near):
        log.warning(
            "the coordinates given are not those of the grid that the model was trained on: it takes "
            "point k for point k of that grid; leave them out, or give the fields in its order"
        )


def warn_of_infinities(outputs: Tensor, frame: int | None) -> None:
    """Log that outputs are NaN or infinite; of frames with `frame` channels, from which step on."""
    wrong = ~outputs.isfinite()
    if not wrong.any():
        return
    since = ""
    if frame is not None:
        channel = int(wrong.flatten(0, -2).any(dim=0).nonzero()[0])
        since = f" from step {channel // frame + 1} on"
    what = "samples" if outputs.dim() == 3 else "points"
    count = int(wrong.flatten(1).any(dim=1).sum())
    log.warning("predictions are NaN or infinite%s in %d of %d %s", since, count, len(outputs), what)
