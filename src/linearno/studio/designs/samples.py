"""Test samples of the run's data, with their true fields. Axes: N points, C channels."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.data import FieldData
from linearno.studio.designs.base import Design, Parameter
from linearno.studio.geometry import Geometry, geometry_of


@dataclass
class SampleDesign(Design):
    """A sample of the test split.

    Args:
        spec: fields of the run.
        data: test split.
    """

    data: FieldData | None = field(default=None)

    title: ClassVar[str] = "Test samples"

    def __post_init__(self) -> None:
        assert self.data is not None
        last = len(self.data) - 1
        self.parameters = {"sample": Parameter("sample", "test sample", 0.0, 0.0, float(max(last, 1)), 1.0)}

    @property
    def index(self) -> int:
        assert self.data is not None
        return min(round(self.value("sample")), len(self.data) - 1)

    def sample(self) -> FieldData:
        """The sample as a data set of one."""
        assert self.data is not None
        return self.data.subset(torch.tensor([self.index]))

    def coords(self) -> Float[ndarray, "N X"]:
        one = self.sample()
        return (one.coords if one.coords.dim() == 2 else one.coords[0]).numpy()

    def inputs(self) -> Float[ndarray, "N C"] | None:
        inputs = self.sample().inputs
        return None if inputs is None else (inputs if inputs.dim() == 2 else inputs[0]).numpy()

    def truth(self) -> Float[ndarray, "N C"]:
        targets = self.sample().targets
        return (targets if targets.dim() == 2 else targets[0]).numpy()

    def geometry(self) -> Geometry:
        return geometry_of(self.coords(), self.spec.grid)
