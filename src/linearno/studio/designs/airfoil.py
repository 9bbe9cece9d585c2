"""Airfoil at Mach 0.8: drag the control points of the box that bends it.

The surrogate predicts the Mach number. Pressure, lift and drag are estimated from it with the total pressure
of the far field. Some of it is lost in shocks and, on a coarse grid, next to the wall: the Mach number is
therefore read a few lines off the wall, across which the pressure hardly changes.

Axes: I nodes along the C-grid, J outwards, N = I·J.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.core.randomness import numpy_generator
from linearno.solvers.airfoil import (
    BOX,
    CONTROL_POINTS,
    MACH,
    MAX_HEIGHT,
    airfoil_nodes,
    draw_heights,
    solve_airfoil,
    wake_nodes,
    with_mach_number,
)
from linearno.solvers.euler import GAMMA
from linearno.studio.designs.base import Design, Handle, LinePlot, Parameter, Quantity, Series
from linearno.studio.geometry import Geometry, geometry_of

LARGEST_HEIGHT = 0.09  # of a slider; the solver's law ends at half the height of the box
COLUMNS = CONTROL_POINTS // 2
LINE = 2  # grid line off the wall on which the Mach number is read


@dataclass
class AirfoilDesign(Design):
    """Heights of the control points of the box; the first is zero, since equal heights shift the airfoil.

    Args:
        spec: fields of the run, on a C-grid.
        stride: step of the surrogate's points on the solver's grid.
    """

    stride: int = 1

    title: ClassVar[str] = "Drag the control points"
    solver: ClassVar[str] = "finite volumes for the Euler equations"
    draws: ClassVar[bool] = True
    hint: ClassVar[str] = "Drag the control points of the box, or use the sliders and arrow keys."

    def __post_init__(self) -> None:
        assert self.spec.grid is not None
        self.resolution = (self.spec.grid[0] - 1) * self.stride + 1
        trained = (-MAX_HEIGHT, MAX_HEIGHT)
        names = [f"θ{i + 1}" for i in range(CONTROL_POINTS)]
        self.parameters = {
            name: Parameter(name, name, 0.0, -LARGEST_HEIGHT, LARGEST_HEIGHT, 0.002, trained)
            for name in names[1:]
        }

    @property
    def heights(self) -> Float[ndarray, "8"]:
        return np.array([0.0, *(parameter.value for parameter in self.parameters.values())])

    def draw(self, seed: int) -> None:
        """A random airfoil like those of the training samples."""
        for name, height in zip(self.parameters, draw_heights(numpy_generator(seed))[1:], strict=True):
            self.set(name, float(height))

    def fill(self, name: str) -> None:
        """The straight airfoil."""
        for key in self.parameters:
            self.set(key, 0.0)

    def nodes(self) -> Float[ndarray, "I J 2"]:
        """C-grid of the solver."""
        return airfoil_nodes(self.heights, self.resolution)

    def coords(self) -> Float[ndarray, "N 2"]:
        return self.nodes()[:: self.stride, :: self.stride].reshape(-1, 2).astype(np.float32)

    def geometry(self) -> Geometry:
        return geometry_of(self.coords(), self.spec.grid)

    def solve(self) -> Float[ndarray, "N 1"]:
        flow = solve_airfoil(torch.from_numpy(self.nodes())[None])
        if not bool(flow.converged.all()):
            raise UserError("the flow around this airfoil does not become steady: bend it less")
        mach = with_mach_number(flow.state)[0, 4, :: self.stride, :: self.stride]
        return self.finite_solution(mach.reshape(-1, 1).numpy())

    def handles(self) -> list[Handle]:
        (left, right), (low, high) = BOX
        x = np.linspace(left, right, COLUMNS)
        places = [(x[i], low) for i in range(COLUMNS)] + [(x[-1 - i], high) for i in range(COLUMNS)]
        return [
            Handle(f"θ{i + 1}", float(at), float(edge + height), fixed=i == 0)
            for i, ((at, edge), height) in enumerate(zip(places, self.heights, strict=True))
        ]

    def outline(self) -> list[list[tuple[float, float]]]:
        points = [(handle.x, handle.y) for handle in self.handles()]
        return [points[:COLUMNS], points[COLUMNS:]]

    def height_at(self, name: str, y: float) -> float:
        """Height of a control point that is dragged to `y`."""
        low, high = BOX[1]
        return y - (low if int(name.removeprefix("θ")) <= COLUMNS else high)

    def wall(self, values: Float[ndarray, "N C"]) -> tuple[Float[ndarray, "n 2"], Float[ndarray, "n"]]:
        """Points of the airfoil, and an estimate of the pressure coefficient there."""
        assert self.spec.grid is not None
        ends = (wake_nodes(self.resolution) - 1) // self.stride
        body = slice(ends, self.spec.grid[0] - ends)
        nodes = self.nodes()[:: self.stride, 0][body]
        return nodes, pressure_coefficient(values[:, 0].reshape(self.spec.grid)[body, LINE])

    def plot(self, named: dict[str, Float[ndarray, "N C"]]) -> LinePlot:
        series = []
        for i, (name, values) in enumerate(named.items()):
            nodes, cp = self.wall(values)
            series.append(Series(name, nodes[:, 0].tolist(), cp.tolist(), i, dashed=i > 0))
        return LinePlot("pressure coefficient on the airfoil (estimate)", "x", "Cp", series, inverted=True)

    def quantities(self, values: Float[ndarray, "N C"]) -> list[Quantity]:
        drag, lift = pressure_force(*self.wall(values))
        return [
            Quantity("lift coefficient", lift),
            Quantity("drag coefficient", drag),
            Quantity("largest Mach number", float(values[:, 0].max())),
        ]


def pressure_coefficient(mach: Float[ndarray, "n"]) -> Float[ndarray, "n"]:
    """Cp from the Mach number at the total pressure of the far field, where the pressure is 1."""
    half = (GAMMA - 1) / 2
    ratio = (1 + half * MACH**2) / (1 + half * mach.astype(float) ** 2)
    return (ratio ** (GAMMA / (GAMMA - 1)) - 1) / (GAMMA * MACH**2 / 2)


def pressure_force(nodes: Float[ndarray, "n 2"], cp: Float[ndarray, "n"]) -> tuple[float, float]:
    """Drag and lift coefficients of a closed outline that runs along its upper side from the rear."""
    side, mean = np.diff(nodes, axis=0), (cp[1:] + cp[:-1]) / 2
    return -float((mean * side[:, 1]).sum()), float((mean * side[:, 0]).sum())
