"""What a surrogate of mesh files was trained on, and what about a new case is outside of it.

Axes: S training cases, N points, Q query points, X coordinates, C channels, D descriptors.
"""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from linearno.core.config import Config
from linearno.data import FieldData

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles of the coordinates that describe a geometry
MARGIN = 0.01  # of a parameter or coordinate beyond its range, over the range
INPUT_MARGIN = 0.1  # of an input that varies over a mesh
MIN_OUTSIDE = 0.001  # share of points outside that is reported
MIN_GEOMETRY_DISTANCE = 0.05  # in units of the spread of the points: less is the same geometry
SCALES = {
    1e3: "is it in millimetres?",
    1e-3: "is it in kilometres?",
    1e2: "is it in centimetres?",
    39.37: "inches?",
}
SCALE_TOLERANCE = 0.1  # relative, of the ratio of extents
MAX_CASES = 500  # whose descriptors are stored

Range = tuple[float, float]


class TrainingRanges(Config):
    """Ranges of the training cases, stored in `model.json`.

    Args:
        coords: range of each coordinate.
        parameters: range of each input that is one number of a case.
        inputs: range of each other input.
        patches: patches of the boundary that all training cases have.
        geometry: quantiles of the coordinates of each case, (S, D).
        spread: half the range between the quartiles of each coordinate, mean over the cases.
        geometry_limit: distance of a geometry from the nearest training case that occurs among these.
        points: parameters of each case, (S, P), in the order of `parameters`.
        parameter_limit: the same distance of parameters, in units of their ranges.
    """

    coords: dict[str, Range]
    parameters: dict[str, Range] = Field(default={})
    inputs: dict[str, Range] = Field(default={})
    patches: tuple[str, ...] = ()
    geometry: tuple[tuple[float, ...], ...] = ()
    spread: tuple[float, ...] = ()
    geometry_limit: float = MIN_GEOMETRY_DISTANCE
    points: tuple[tuple[float, ...], ...] = ()
    parameter_limit: float = 1.0

    @classmethod
    def of(cls, train: FieldData, parameters: Sequence[str], patches: Sequence[str]) -> "TrainingRanges":
        """Ranges of the training cases.

        Args:
            train: the training cases.
            parameters: inputs that are one number of a case.
            patches: that all training cases have.
        """
        spec, quantiles, rows = train.spec, [], []
        own = [spec.inputs.index(name) for name in parameters]
        for i in range(len(train)):
            sample = train.batch(torch.tensor([i]))
            quantiles.append(_quantiles(sample.coords[0].double().cpu().numpy()))
            rows.append([] if sample.inputs is None else sample.inputs[0, 0, own].double().tolist())
        kept = slice(0, MAX_CASES)
        geometry, points = np.array(quantiles)[kept], np.array(rows)[kept]
        spread = np.maximum(_spreads(geometry, len(spec.coords)).mean(axis=0), 1e-300)
        sizes = np.maximum(np.ptp(points, axis=0), 1e-300) if points.size else np.ones(0)
        return cls(
            coords=_ranges(spec.coords, train.coords),
            parameters=_ranges(
                parameters, None if not own or train.inputs is None else train.inputs[..., own]
            ),
            inputs={
                name: limits
                for name, limits in _ranges(spec.inputs, train.inputs).items()
                if name not in parameters
            },
            patches=tuple(patches),
            geometry=_tuples(geometry),
            spread=tuple(spread.tolist()),
            geometry_limit=max(MIN_GEOMETRY_DISTANCE, 1.5 * _largest_gap(_in_spreads(geometry, spread))),
            points=_tuples(points),
            parameter_limit=max(1e-9, _largest_gap(points / sizes)) if points.size else 1.0,
        )

    def findings(
        self,
        coords: Float[ndarray, "N X"],
        inputs: Float[ndarray, "N C"],
        names: Sequence[str],
        patches: Sequence[str],
    ) -> list[str]:
        """Messages about a case outside of the training cases; none if it is inside.

        Args:
            coords: of its points.
            inputs: channels at its points.
            names: of the input channels.
            patches: of its boundary.
        """
        columns = dict(zip(names, inputs.T, strict=True))
        found = [
            f"{name} is {columns[name][0]:.4g}, the training cases have {low:.4g} to {high:.4g}"
            for name, (low, high) in self.parameters.items()
            if _outside(columns[name][:1], low, high, MARGIN).any()
        ]
        if missing := [name for name in self.patches if name not in patches]:
            found.append(f"patch {', '.join(missing)} of the training cases is missing")
        geometry = self._geometry_findings(coords.astype(float))
        if not geometry:
            found += self._input_findings(columns)
        return found + geometry

    def _input_findings(self, columns: dict[str, ndarray]) -> list[str]:
        lines = []
        for name, (low, high) in self.inputs.items():
            share = _outside(columns[name], low, high, INPUT_MARGIN).mean()
            if share > MIN_OUTSIDE:
                ends = f"{columns[name].min():.4g} to {columns[name].max():.4g}"
                lines.append(f"{name} is {ends}, the training cases have {low:.4g} to {high:.4g}")
        return lines

    def _geometry_findings(self, coords: Float[ndarray, "N X"]) -> list[str]:
        extents = np.array([high - low for low, high in self.coords.values()])
        ratio = float(np.ptp(coords, axis=0).max() / extents.max())
        for scale, question in SCALES.items():
            if abs(ratio / scale - 1) < SCALE_TOLERANCE:
                return [f"the mesh is {ratio:.4g} times as large as the training cases: {question}"]
        lines = []
        distance = self.geometry_distance(coords)
        if distance > self.geometry_limit:
            swapped = self._swap_that_fits(coords, distance)
            lines.append(
                f"the geometry differs from all training cases by {distance:.2g} times their spread"
                if swapped is None
                else f"the axes look swapped: the mesh fits the training cases as ({', '.join(swapped)})"
            )
        outside = self.outside(coords)
        if outside.mean() > MIN_OUTSIDE:
            lines.append(f"{int(outside.sum())} of {len(coords)} points lie outside {self.box}")
        return lines

    def _swap_that_fits(self, coords: Float[ndarray, "N X"], distance: float) -> tuple[str, ...] | None:
        """Order of the axes in which the geometry is like that of a training case."""
        names, best = tuple(self.coords), None
        for order in list(permutations(range(len(names))))[1:]:
            other = self.geometry_distance(coords[:, list(order)])
            if other <= max(self.geometry_limit, distance / 5) and (best is None or other < best[0]):
                best = other, tuple(names[k] for k in order)
        return None if best is None else best[1]

    def geometry_distance(self, coords: Float[ndarray, "N X"]) -> float:
        """Largest difference of a quantile from the nearest training case, in units of the spread."""
        if not self.geometry:
            return 0.0
        spread = np.array(self.spread)
        own = _in_spreads(_quantiles(coords)[None], spread)
        return float(np.abs(_in_spreads(np.array(self.geometry), spread) - own).max(axis=1).min())

    def parameter_distance(self, inputs: Float[ndarray, "N C"], names: Sequence[str]) -> float:
        """Distance of the parameters from the nearest training case, in units of their ranges."""
        if not self.parameters or not self.points:
            return 0.0
        sizes = np.array([max(high - low, 1e-300) for low, high in self.parameters.values()])
        own = np.array([inputs[0, list(names).index(name)] for name in self.parameters], dtype=float)
        return float(np.linalg.norm((np.array(self.points) - own) / sizes, axis=1).min())

    def novelty(
        self, coords: Float[ndarray, "N X"], inputs: Float[ndarray, "N C"], names: Sequence[str]
    ) -> float:
        """Score of a case: up to 1 it is as near to a training case as these are to each other."""
        geometry = self.geometry_distance(coords.astype(float)) / self.geometry_limit
        return max(geometry, self.parameter_distance(inputs, names) / self.parameter_limit)

    def outside(self, points: Float[ndarray, "Q X"]) -> ndarray:
        """Mask (Q,) of the points outside the box of the training points."""
        ends = self.coords.values()
        return np.any([_outside(points[:, k], *ends_, MARGIN) for k, ends_ in enumerate(ends)], axis=0)

    @property
    def box(self) -> str:
        sides = ", ".join(f"{name} from {low:.4g} to {high:.4g}" for name, (low, high) in self.coords.items())
        return f"the box of the training points ({sides})"


def _outside(values: ndarray, low: float, high: float, margin: float) -> ndarray:
    slack = margin * max(high - low, 1e-6 * max(abs(low), abs(high)))
    return (values < low - slack) | (values > high + slack)


def _quantiles(coords: Float[ndarray, "N X"]) -> Float[ndarray, "D"]:
    return np.quantile(coords, LEVELS, axis=0).T.reshape(-1)


def _spreads(geometry: Float[ndarray, "S D"], axes: int) -> Float[ndarray, "S X"]:
    quantiles = geometry.reshape(len(geometry), axes, len(LEVELS))
    return (quantiles[..., LEVELS.index(0.75)] - quantiles[..., LEVELS.index(0.25)]) / 2


def _in_spreads(geometry: Float[ndarray, "S D"], spread: ndarray) -> Float[ndarray, "S D"]:
    return geometry / np.repeat(spread, len(LEVELS))


def _largest_gap(points: Float[ndarray, "S D"]) -> float:
    """95 % quantile of the distance to the nearest other case."""
    if len(points) < 2:
        return 0.0
    found = torch.from_numpy(points).double()
    gaps = torch.cdist(found, found).fill_diagonal_(float("inf")).amin(dim=1)
    return float(np.quantile(gaps.numpy(), 0.95))


def _ranges(names: Sequence[str], values: Tensor | None) -> dict[str, Range]:
    if values is None or not len(names):
        return {}
    flat = values.reshape(-1, values.shape[-1])
    low, high = flat.amin(dim=0).tolist(), flat.amax(dim=0).tolist()
    return {name: (low[k], high[k]) for k, name in enumerate(names)}


def _tuples(rows: ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in rows.tolist())
