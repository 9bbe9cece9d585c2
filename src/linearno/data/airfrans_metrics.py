"""Loss, errors and forces of AirfRANS: channels are velocity along x and y, pressure, turbulent viscosity.

Axes: B samples, N points, T points of all packed samples, C channels, Q quadrilaterals.
"""

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from scipy.stats import spearmanr
from torch import Tensor

from linearno.data.field_data import FieldData
from linearno.data.sample import Batch
from linearno.metrics.forces import lift_and_drag, wall_force
from linearno.ops.ragged import sizes_of, split_segments
from linearno.solvers.naca import VISCOSITY

PRESSURE_CHANNEL = 2
NO_SLIP = (0, 1, 3)  # channels that are zero on the airfoil
TINY = 1e-15  # added to coefficients in relative errors, as published

Values = Float[Tensor, "*form C"]


def corners_as_edges(quads: Int64[Tensor, "Q 4"]) -> Int64[Tensor, "2 E"]:
    """Quadrilaterals (a, b, c, d) as pairs of edges (a, b), (c, d), for an auxiliary field of edges."""
    return quads.reshape(-1, 2).mT.contiguous()


def edges_as_corners(edges: Int64[Tensor, "2 E"]) -> Int64[Tensor, "Q 4"]:
    return edges.mT.reshape(-1, 4)


def with_no_slip(prediction: Values, batch: Batch) -> Values:
    """Predictions with zero velocity and turbulent viscosity on the airfoil, as published."""
    assert batch.surface is not None
    known = prediction.new_zeros(prediction.shape[-1], dtype=torch.bool)
    known[list(NO_SLIP)] = True
    return prediction.masked_fill(batch.surface[..., None] & known, 0)


def point_owner(batch: Batch) -> Int64[Tensor, "T"]:
    """Sample of each point of the flattened batch."""
    if batch.segments is None:
        count = torch.full((len(batch.targets),), batch.targets.shape[1])
    else:
        count = torch.tensor(sizes_of(batch.segments, batch.targets.shape[1]))
    return torch.arange(len(count)).repeat_interleave(count).to(batch.targets.device)


def mean_over(values: Float[Tensor, "*form"], mask: Tensor, batch: Batch) -> Float[Tensor, "B"]:
    """Mean over the points of `mask` in each sample; 0 where there are none."""
    if batch.segments is not None:
        parts = zip(split_segments(values, batch.segments), split_segments(mask, batch.segments), strict=True)
        return torch.cat([mean_over(*part, batch._replace(segments=None)) for part in parts])
    total = values.masked_fill(~mask, 0).sum(dim=1, dtype=torch.float64)
    return (total / mask.sum(dim=1).clamp(min=1)).to(values.dtype)


def volume_and_surface_loss(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """Mean squared error over all channels, of the points off the airfoil plus of those on it."""
    assert batch.surface is not None
    squared = (prediction - batch.targets).square().mean(dim=-1)
    return mean_over(squared, ~batch.surface, batch) + mean_over(squared, batch.surface, batch)


def normalised_error(prediction: Values, batch: Batch, channel: int) -> Float[Tensor, "*form"]:
    """Squared error of a channel in units of its variance over the training samples."""
    scale = batch.aux["scale"][:, channel].to(prediction)[point_owner(batch)]
    error = prediction[..., channel] - batch.targets[..., channel]
    return (error / scale.reshape(error.shape)).square()


def volume(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """Mean squared error of the standardised pressure off the airfoil: "Volume" of the published tables."""
    return _volume(prediction, batch, PRESSURE_CHANNEL)


def surface(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """Mean squared error of the standardised pressure on the airfoil: "Surface" of the published tables."""
    assert batch.surface is not None
    return mean_over(normalised_error(prediction, batch, PRESSURE_CHANNEL), batch.surface, batch)


def volume_ux(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """As `volume`, of the velocity along x. On the airfoil it is known, as are those of uy and nut."""
    return _volume(prediction, batch, 0)


def volume_uy(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """As `volume`, of the velocity along y."""
    return _volume(prediction, batch, 1)


def volume_nut(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """As `volume`, of the turbulent viscosity."""
    return _volume(prediction, batch, 3)


def _volume(prediction: Values, batch: Batch, channel: int) -> Float[Tensor, "B"]:
    assert batch.surface is not None
    return mean_over(normalised_error(prediction, batch, channel), ~batch.surface, batch)


def coefficients(values: Values, batch: Batch) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Coefficients of lift and drag of fields, from pressure and friction on the airfoil."""
    assert batch.surface is not None
    quads, owner = edges_as_corners(batch.aux["wall_cells"]), point_owner(batch)
    fields = with_no_slip(values, batch).flatten(0, -2)
    force = wall_force(
        batch.coords.flatten(0, -2),
        quads,
        batch.surface.flatten(),
        fields[:, PRESSURE_CHANNEL],
        fields[:, :2],
        viscosity=VISCOSITY,
        owner=owner[quads[:, 0]],
        samples=batch.size,
    )
    return lift_and_drag(force.total, *batch.aux["stream"].double().unbind(-1))


def lift_error(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """|C_L − true C_L| / |true C_L|."""
    return _relative_error(prediction, batch, 0)


def drag_error(prediction: Values, batch: Batch) -> Float[Tensor, "B"]:
    """|C_D − true C_D| / |true C_D|."""
    return _relative_error(prediction, batch, 1)


def _relative_error(prediction: Values, batch: Batch, which: int) -> Float[Tensor, "B"]:
    predicted, true = (coefficients(values, batch)[which] for values in (prediction, batch.targets))
    return ((predicted - true) / (true + TINY)).abs()


def force_table(predictions: Tensor, test: FieldData) -> dict[str, ndarray]:
    """Angle in degrees, speed, and predicted and true coefficients of all test samples, each (S,)."""
    batch = test.everything().to(predictions.device)
    predictions = predictions if test.offsets is None else predictions[None]
    speed, angle = batch.aux["stream"].double().unbind(-1)
    table = {"angle": angle.rad2deg(), "speed": speed}
    for name, values in (("", predictions), ("true_", batch.targets)):
        table[f"{name}lift"], table[f"{name}drag"] = coefficients(values, batch)
    return {name: values.numpy() for name, values in table.items()}


def lift_spearman(predictions: Tensor, test: FieldData) -> float:
    """Rank correlation of predicted and true lift over the test samples."""
    table = force_table(predictions, test)
    return _rank_correlation(table["lift"], table["true_lift"])


def drag_spearman(predictions: Tensor, test: FieldData) -> float:
    """Rank correlation of predicted and true drag over the test samples."""
    table = force_table(predictions, test)
    return _rank_correlation(table["drag"], table["true_drag"])


def _rank_correlation(predicted: ndarray, true: ndarray) -> float:
    """0 where it is undefined: for one sample, or equal values."""
    if len(true) < 2 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return 0.0
    return float(spearmanr(predicted, true).statistic)
