"""How far a design is from the training samples, in a number and in words. Axes: S samples, F features."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.data import FieldData

MAX_SAMPLES, MAX_FEATURES, MAX_COMPONENTS = 400, 4000, 24
QUANTILE = 0.99  # of the training samples' own distances, at which the score is 1
VARIANCE = 0.99  # share that the kept components have
EDGE = 1.3  # score above which a design is outside instead of at the edge


class Verdict(NamedTuple):
    """Score and level of trust ("inside", "edge" or "outside"), and sentences."""

    score: float | None
    level: str
    sentences: list[str]


@dataclass(frozen=True)
class DesignGuard:
    """Distance of inputs and geometry from the training samples, in their principal components.

    The score is the larger of two ratios: of the distance within the space of the components, and of the
    distance from it, each to the 99 % quantile of training samples that were held out when it was fitted.
    """

    mean: Float[ndarray, "F"]
    basis: Float[ndarray, "F K"]
    deviation: Float[ndarray, "K"]
    scale: Float[ndarray, "F"]
    within: float
    residual: float

    @classmethod
    def fit(cls, features: Float[ndarray, "S F"]) -> "DesignGuard":
        """Fit to half of the samples, and calibrate on the other half."""
        features = features[:: max(1, len(features) // MAX_SAMPLES)].astype(float)
        fitted, held = features[::2], features[1::2] if len(features) > 1 else features
        mean = fitted.mean(axis=0)
        spread = fitted.std(axis=0)
        scale = np.where(spread > 0, spread, np.abs(mean) + 1e-12)
        _, singular, rows = np.linalg.svd((fitted - mean) / scale, full_matrices=False)
        share = np.cumsum(singular**2) / max((singular**2).sum(), 1e-300)
        count = min(MAX_COMPONENTS, 1 + int(np.searchsorted(share, VARIANCE)), max(1, len(fitted) // 2))
        deviation = np.maximum(singular[:count] / np.sqrt(len(fitted)), 1e-12)
        raw = cls(mean, rows[:count].T, deviation, scale, 1.0, 1.0)
        parts = np.array([raw._distances(row) for row in held])
        within, residual = np.maximum(np.quantile(parts, QUANTILE, axis=0), 1e-9)
        return cls(mean, rows[:count].T, deviation, scale, float(within), float(residual))

    def score(self, features: Float[ndarray, "F"]) -> float:
        """At most 1 for 99 % of the training samples."""
        within, residual = self._distances(features)
        return max(within / self.within, residual / self.residual)

    def _distances(self, features: Float[ndarray, "F"]) -> tuple[float, float]:
        centred = (features.astype(float) - self.mean) / self.scale
        parts = centred @ self.basis
        rest = centred - self.basis @ parts
        return float(np.sqrt(np.mean((parts / self.deviation) ** 2))), float(np.sqrt(np.mean(rest**2)))


def training_features(data: FieldData) -> Float[ndarray, "S F"] | None:
    """Geometry and inputs of all samples as rows; None if their meshes differ in size."""
    if data.offsets is not None:
        return None
    parts = [] if data.inputs is None else [data.inputs.flatten(1)]
    if data.coords.dim() == 3:
        parts.append(data.coords.flatten(1))
    if not parts:
        return None
    return np.concatenate([thinned(part.numpy()) for part in parts], axis=1)


def features_of(
    coords: Float[ndarray, "N X"], inputs: Float[ndarray, "N C"] | None, *, own_points: bool
) -> Float[ndarray, "F"]:
    """Features of one design, as `training_features` has them; `own_points`: each sample has its points."""
    parts = [] if inputs is None else [inputs.reshape(1, -1)]
    if own_points:
        parts.append(coords.reshape(1, -1))
    return np.concatenate([thinned(part) for part in parts], axis=1)[0]


def thinned(rows: Float[ndarray, "S F"]) -> Float[ndarray, "S f"]:
    return rows[:, :: max(1, rows.shape[1] // MAX_FEATURES)]


def verdict(score: float | None, warnings: list[str]) -> Verdict:
    """Level and sentences for a score and the warnings about parameters."""
    if score is not None and score > EDGE:
        text = f"This design is unlike the training samples: its score is {score:.1f}, above 1 is outside. "
        return Verdict(
            score, "outside", [text + "Do not rely on the prediction without the solver.", *warnings]
        )
    if warnings:
        return Verdict(score, "outside", [*warnings, "The prediction is an extrapolation."])
    if score is None:
        return Verdict(None, "inside", ["All numbers are within the training range."])
    if score > 1:
        return Verdict(
            score, "edge", [f"This design is at the edge of the training samples (score {score:.2f})."]
        )
    return Verdict(
        score, "inside", [f"This design is like the training samples (score {score:.2f}, at most 1)."]
    )
