"""Batches of samples, and the specification of their fields.

Axes: S samples, B batch, N points, X coordinates, C channels, E edges.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from linearno.core.config import Config

Part = Literal["coords", "inputs", "outputs"]
AuxKind = Literal["point", "sample", "edge"]  # an auxiliary field has one row per …

RENAMED_FIELDS = {  # name in bundles and run folders of version 0.1 → current name
    "scaled": "standardised",
    "places": "position_outputs",
    "view": "plot_extent",
    "partial": "masked_outputs",
}


class FieldSpec(Config):
    """Names, units and roles of the fields of a data set; stored in bundles.

    Args:
        coords: names of the X coordinates.
        inputs: names of the input channels; empty if the geometry is the only input.
        outputs: names of the predicted channels.
        units: unit of each field by name; fields without an entry are dimensionless.
        grid: (rows, columns[, layers]) if the points form a structured grid in C order.
        standardised: parts scaled to mean 0 and deviation 1 with statistics of the training split.
        position_outputs: outputs that are the positions of the points, X names for each frame.
        plot_extent: (lower, upper) bounds of each coordinate in plots; all points if None.
        vectors: components of vector fields, {vector: (channel, …)}.
        masked_outputs: outputs that are known at some points only and NaN at the others.
        aux: kind of each auxiliary field: normals, areas ("point"), inflow ("sample"), edges ("edge").
    """

    coords: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    units: dict[str, str] = Field(default={})
    grid: tuple[PositiveInt, ...] | None = None
    standardised: tuple[Part, ...] = ()
    position_outputs: tuple[str, ...] = ()
    plot_extent: tuple[tuple[float, float], ...] | None = None
    vectors: dict[str, tuple[str, ...]] = Field(default={})
    masked_outputs: tuple[str, ...] = ()
    aux: dict[str, AuxKind] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _accept_former_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {RENAMED_FIELDS.get(name, name): value for name, value in values.items()}

    @model_validator(mode="after")
    def _names_are_distinct(self) -> "FieldSpec":
        names = [*self.coords, *self.inputs, *self.outputs]
        if len(set(names)) != len(names):
            raise ValueError(f"field names must be distinct, got {names}")
        return self

    @property
    def points(self) -> int | None:
        """Number of points N of the grid; None without a grid."""
        return prod(self.grid) if self.grid else None

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """Output fields by name, with their channels: (x, y, …) of a vector, (name,) of a scalar."""
        whole = {name: parts for name, parts in self.vectors.items() if set(parts) <= set(self.outputs)}
        inside = {channel: name for name, parts in whole.items() for channel in parts}
        names = dict.fromkeys(inside.get(channel, channel) for channel in self.outputs)
        return {name: whole.get(name, (name,)) for name in names}

    def unit(self, name: str) -> str:
        return self.units.get(name, "dimensionless")


def is_edges(part: Tensor) -> bool:
    """Whether an auxiliary field contains edges, the only integer fields (`FieldData` enforces this)."""
    return part.dtype == torch.int64


class Batch(NamedTuple):
    """A batch of samples (B, N, ·), or one sample (N, ·); channels last.

    With `segments` the batch is packed: meshes of different sizes are concatenated to (1, T, ·) with
    T = Σ N_i; sample i has the points segments[i]:segments[i+1].

    Args:
        coords: points of the inputs, in physical units, (B, N, X).
        inputs: input channels (B, N, C), if there are any.
        targets: true outputs (B, N, C).
        points: query points (B, N, X) of the targets, if they differ from `coords`.
        time: one time per sample (B, 1), for models that take one.
        segments: offsets (B + 1,) of a packed batch, on the host.
        surface: boolean mask (B, N) of the points on a surface.
        aux: auxiliary fields by name, of the kinds in `FieldSpec.aux`: at points (B, N, ·), packed (1, T, ·);
            per sample (B, ·); or edges (2, E), indices of points in the flattened batch.
    """

    coords: Tensor
    inputs: Tensor | None
    targets: Tensor
    points: Tensor | None = None
    time: Tensor | None = None
    segments: Tensor | None = None
    surface: Tensor | None = None
    aux: Mapping[str, Tensor] = {}

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.targets) if self.segments is None else len(self.segments) - 1

    def to(self, device: torch.device) -> "Batch":
        """The batch on `device`; `segments` stay on the host."""
        moved: dict[str, Any] = {
            name: part.to(device, non_blocking=True)
            for name, part in self._asdict().items()
            if isinstance(part, Tensor) and name != "segments"
        }
        aux = {name: part.to(device, non_blocking=True) for name, part in self.aux.items()}
        return self._replace(**moved, aux=aux)

    def repeat(self, times: int) -> "Batch":
        """Every sample `times` times in a row: (B·times, N, ·). Not for packed batches."""
        assert self.segments is None
        points = self.coords.shape[-2]

        def repeated(part: Tensor) -> Tensor:
            return part[:, None].expand(-1, times, *part.shape[1:]).flatten(0, 1)

        def edges(part: Tensor) -> Tensor:
            copies = torch.arange(times, device=part.device)[:, None, None]
            shifted = (part // points * times + copies) * points + part % points  # times, 2, E
            return shifted.transpose(0, 1).flatten(1)

        fields: dict[str, Any] = {
            name: repeated(part) for name, part in self._asdict().items() if isinstance(part, Tensor)
        }
        aux = {name: edges(part) if is_edges(part) else repeated(part) for name, part in self.aux.items()}
        return self._replace(**fields, aux=aux)
