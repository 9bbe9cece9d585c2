"""A sample, and what its channels mean. Axes: S samples, B batch, N points, X coordinates, C channels."""

from math import prod
from typing import Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from linearno.core.config import Config

Part = Literal["coords", "inputs", "outputs"]


class FieldSpec(Config):
    """What a dataset holds: a model is sized from it, a bundle carries it, a picture is labelled by it."""

    coords: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    units: dict[str, str] = Field(default={})  # name → unit; a name without one is dimensionless
    grid: tuple[int, ...] | None = None  # (rows, columns[, layers]); points are its C-order flattening
    scaled: tuple[Part, ...] = ()  # which parts are standardised with statistics of the training split
    places: tuple[str, ...] = ()  # outputs that say where the points are, two or three for each frame
    view: tuple[tuple[float, float], ...] | None = None  # bounds of each coordinate in pictures; all of it
    vectors: dict[str, tuple[str, ...]] = Field(default={})  # fields of several channels, by name
    partial: tuple[str, ...] = ()  # outputs that are known at some points only; NaN at the others

    @model_validator(mode="after")
    def _names_are_distinct(self) -> "FieldSpec":
        names = [*self.coords, *self.inputs, *self.outputs]
        if len(set(names)) != len(names):
            raise ValueError(f"field names must be distinct, got {names}")
        return self

    @property
    def points(self) -> int | None:
        """N where a grid fixes it."""
        return prod(self.grid) if self.grid else None

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """What the outputs are: a vector with its channels, or a channel that stands for itself."""
        whole = {name: parts for name, parts in self.vectors.items() if set(parts) <= set(self.outputs)}
        inside = {channel: name for name, parts in whole.items() for channel in parts}
        names = dict.fromkeys(inside.get(channel, channel) for channel in self.outputs)
        return {name: whole.get(name, (name,)) for name in names}

    def unit(self, name: str) -> str:
        return self.units.get(name, "dimensionless")


class Sample(NamedTuple):
    """One sample (N, ·), or a batch of them (B, N, ·); channels last.

    With `segments` the batch is packed: meshes of different sizes one after another, each part (1, T, ·) with
    T = Σ N_i, sample i the points segments[i]:segments[i+1]. The B + 1 offsets stay on the host.
    """

    coords: Tensor
    inputs: Tensor | None
    targets: Tensor
    points: Tensor | None = None  # where the targets are, if not at `coords`
    time: Tensor | None = None  # (B, 1), where the model is told one
    segments: Tensor | None = None  # (B + 1,) offsets of a packed batch

    @property
    def size(self) -> int:
        """How many samples a batch holds."""
        return len(self.targets) if self.segments is None else len(self.segments) - 1

    def to(self, device: torch.device) -> "Sample":
        def moved(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.to(device, non_blocking=True)

        return self._replace(
            coords=self.coords.to(device, non_blocking=True),
            inputs=moved(self.inputs),
            targets=self.targets.to(device, non_blocking=True),
            points=moved(self.points),
            time=moved(self.time),
        )
