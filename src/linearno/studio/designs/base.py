"""What a user changes on the design page, and what the surrogate and the solver make of it.

Axes: N points, X coordinates, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean
from linearno.data import FieldSpec
from linearno.studio.geometry import Geometry

Range = tuple[float, float]
Box = tuple[tuple[float, float], tuple[float, float]]  # lower and upper bound along x and y


@dataclass(frozen=True)
class Parameter:
    """A number with a slider.

    Args:
        name: key.
        label: text beside the slider.
        value: current value.
        low: lower end of the slider.
        high: upper end of the slider.
        step: step of the slider and of the arrow keys.
        trained: range of the training samples, if known.
        unit: unit.
    """

    name: str
    label: str
    value: float
    low: float
    high: float
    step: float = 0.0
    trained: Range | None = None
    unit: str = ""

    @property
    def warning(self) -> str | None:
        """A sentence if the value lies outside the training range."""
        if self.trained is None:
            return None
        low, high = self.trained
        slack = 1e-9 * max(abs(low), abs(high), 1e-30)
        if low - slack <= self.value <= high + slack:
            return None
        unit = f" {self.unit}" if self.unit else ""
        place = f"outside the training range, {low:.4g} to {high:.4g}{unit}"
        return f"{self.label} = {self.value:.4g}{unit} is {place}"


@dataclass(frozen=True)
class Handle:
    """A point that is dragged vertically to set a parameter; a fixed one is only shown."""

    name: str
    x: float
    y: float
    fixed: bool = False


@dataclass(frozen=True)
class Series:
    """A line of a plot; `color` is the index of a colour."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class LinePlot:
    """Lines with axis labels; `inverted`: the vertical axis points down, as is usual for Cp."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    inverted: bool = False


@dataclass(frozen=True)
class Quantity:
    """An integral or extreme value of a field."""

    name: str
    value: float
    unit: str = ""


@dataclass
class Design(ABC):
    """One design of a problem: parameters, geometry, inputs of the surrogate, and the solver if there is one.

    Args:
        spec: fields of the run.
        parameters: numbers with sliders, by name.
    """

    spec: FieldSpec
    parameters: dict[str, Parameter] = field(default_factory=dict)

    title: ClassVar[str]
    solver: ClassVar[str] = ""  # name of the solver; "" without one
    paints: ClassVar[bool] = False
    draws: ClassVar[bool] = False  # whether `draw` and `fill` exist
    moves: ClassVar[bool] = True  # whether its points depend on its parameters
    hint: ClassVar[str] = ""

    def set(self, name: str, value: float) -> None:
        """Change a parameter, within the ends of its slider."""
        if name not in self.parameters:
            raise UserError(f"no parameter {name!r}; {did_you_mean(name, self.parameters)}")
        old = self.parameters[name]
        if not np.isfinite(value):
            raise UserError(f"{old.label}: expected a number from {old.low:g} to {old.high:g}")
        self.parameters[name] = replace(old, value=float(min(max(value, old.low), old.high)))

    def value(self, name: str) -> float:
        return self.parameters[name].value

    def draw(self, seed: int) -> None:
        """A random design like those of the training samples."""
        raise UserError("this design has no random examples")

    def fill(self, name: str) -> None:
        """A simple design of this name."""
        raise UserError(f"this design has no example {name!r}")

    @abstractmethod
    def coords(self) -> Float[ndarray, "N X"]:
        """Points of the surrogate."""

    def inputs(self) -> Float[ndarray, "N _"] | None:
        """Input channels of the surrogate; None without inputs."""
        return None

    @abstractmethod
    def geometry(self) -> Geometry:
        """Cells for drawing."""

    def truth(self) -> Float[ndarray, "N C"] | None:
        """True outputs, if they are known."""
        return None

    def solve(self) -> Float[ndarray, "N C"]:
        """Outputs of the solver on this design."""
        raise UserError("there is no solver for this design")

    def handles(self) -> list[Handle]:
        """Points to drag."""
        return []

    def outline(self) -> list[list[tuple[float, float]]]:
        """Lines that connect the handles."""
        return []

    def view(self) -> Box | None:
        """Part of the plane that is shown first; everything if None."""
        extent = self.spec.plot_extent
        return (extent[0], extent[1]) if extent is not None and len(extent) >= 2 else None

    def plot(self, named: dict[str, Float[ndarray, "N C"]]) -> LinePlot | None:
        """Lines along the surface or through the field, for outputs by name ("surrogate", "solver")."""
        return None

    def quantities(self, values: Float[ndarray, "N C"]) -> list[Quantity]:
        """Integral and extreme values of outputs."""
        found = []
        for channel, name in enumerate(self.spec.outputs[:3]):
            column, unit = values[:, channel], self.spec.units.get(name, "")
            if np.isfinite(column).any():
                found.append(Quantity(f"largest {name}", float(np.nanmax(column)), unit))
                found.append(Quantity(f"mean {name}", float(np.nanmean(column)), unit))
        return found

    def warnings(self) -> list[str]:
        """Sentences about parameters outside the training range."""
        found = (parameter.warning for parameter in self.parameters.values())
        return [warning for warning in found if warning]

    def finite_solution(self, values: Float[ndarray, "N C"]) -> Float[ndarray, "N C"]:
        """`values`, or an error if the solver has no solution for the design."""
        if not np.isfinite(values).all():
            raise UserError("the solver has no finite solution for this design: change it")
        return values
