"""Conformal prediction intervals, calibrated on cases that a model was not trained on.

Axes: S cases, N points, C channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.config import Config

LEVEL = 0.9
MAX_VALUES = 2_000_000  # of each channel that are sorted


class Intervals(Config):
    """Intervals mean ± factor · deviation that contain the truth at a share of the points.

    Args:
        level: that share.
        factors: factor of each channel; the deviation is that of the model, or one number per channel.
        deviations: deviation of each channel for a model without a standard deviation; empty with one.
        cases: number of cases of the calibration.
    """

    level: float = LEVEL
    factors: tuple[float, ...]
    deviations: tuple[float, ...] = ()
    cases: int

    def half_widths(self, std: Tensor | None, values: Tensor) -> Tensor:
        """Half the width of the intervals, shaped as the predicted values (…, C)."""
        factors = values.new_tensor(self.factors)
        if std is None or self.deviations:
            return factors * values.new_tensor(self.deviations).expand_as(values)
        return factors * std


def calibrate(
    errors: list[Float[Tensor, "N C"]],
    deviations: list[Float[Tensor, "N C"]] | None,
    scale: Float[Tensor, "C"],
    level: float = LEVEL,
) -> Intervals:
    """Factors by which a share `level` of the errors lies within factor · deviation.

    Args:
        errors: prediction minus truth of each case that the model has not seen.
        deviations: standard deviations of the model; None: `scale` at all points.
        scale: deviation of each channel.
        level: share of the points.
    """
    scores = []
    for number, error in enumerate(errors):
        by = scale if deviations is None else deviations[number]
        scores.append((error.abs() / by.clamp(min=1e-30)).reshape(-1, error.shape[-1]))
    factors = [_quantile(column[column.isfinite()], level) for column in torch.cat(scores).unbind(-1)]
    return Intervals(
        level=level,
        factors=tuple(factors),
        deviations=() if deviations is not None else tuple(scale.double().tolist()),
        cases=len(errors),
    )


def _quantile(values: Float[Tensor, "N"], level: float) -> float:
    """Conformal quantile of the known scores of a channel."""
    ordered = values[:: max(1, len(values) // MAX_VALUES)].sort().values
    rank = min(len(ordered) - 1, int(level * (len(ordered) + 1)))
    return float(ordered[rank]) if len(ordered) else 0.0


def coverage(errors: Float[Tensor, "*form C"], half_widths: Float[Tensor, "*form C"]) -> Float[Tensor, "C"]:
    """Share of the known values of each channel within their interval."""
    known = errors.isfinite()
    inside = (errors.abs() <= half_widths) & known
    return inside.flatten(0, -2).sum(dim=0) / known.flatten(0, -2).sum(dim=0)
