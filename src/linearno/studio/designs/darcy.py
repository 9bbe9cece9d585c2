"""Darcy flow: paint the permeability. Axes: K points a side of the solver, s of the surrogate, N = s²."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.core.randomness import numpy_generator
from linearno.data.array_set import unit_square
from linearno.solvers.darcy import solve_at_cell_centres
from linearno.solvers.random_fields import neumann_field
from linearno.studio.designs.base import Design, LinePlot, Parameter, Quantity, Series
from linearno.studio.geometry import Geometry, geometry_of

LOW, HIGH = 3.0, 12.0  # permeabilities of the benchmark
LARGEST = 40.0
FILLS = {"low": LOW, "high": HIGH}


@dataclass
class DarcyDesign(Design):
    """A permeability on the grid of the solver, every `stride`-th point of which the surrogate takes.

    Args:
        spec: fields of the run, on a grid of s × s points.
        stride: step of the surrogate's points on the solver's grid.
        seed: seed of the first medium.
    """

    stride: int = 1
    seed: int = 0
    medium: Float[ndarray, "K K"] = field(init=False)

    title: ClassVar[str] = "Paint the permeability"
    solver: ClassVar[str] = "five-point scheme, conjugate gradients"
    paints: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    hint: ClassVar[str] = "Paint the medium with the pointer; the pressure follows."

    def __post_init__(self) -> None:
        assert self.spec.grid is not None
        self.size = (self.spec.grid[0] - 1) * self.stride + 1
        self.parameters = {
            "brush": Parameter("brush", "brush permeability", HIGH, 0.5, LARGEST, 0.5, (LOW, HIGH)),
            "radius": Parameter("radius", "brush radius", 0.08, 0.02, 0.25, 0.01),
            "line": Parameter("line", "height of the line plot", 0.5, 0.0, 1.0, 0.01),
        }
        self.draw(self.seed)

    def draw(self, seed: int) -> None:
        """A random medium like those of the training samples."""
        self.seed = seed
        self.medium = np.where(neumann_field(numpy_generator(seed), self.size) >= 0, HIGH, LOW)

    def fill(self, name: str) -> None:
        """A uniform medium, "low" or "high"."""
        self.medium = np.full((self.size, self.size), FILLS[name])

    def paint(self, points: list[tuple[float, float]]) -> None:
        """Set the permeability around points (x, y) to that of the brush; in between, along lines."""
        axis, radius = np.linspace(0, 1, self.size), self.value("radius")
        ends = np.array(points, dtype=float).reshape(-1, 2)
        if not np.isfinite(ends).all():
            raise UserError("the brush left the page")
        for i in range(len(ends)):
            start, end = ends[max(i - 1, 0)], ends[i]
            for t in np.linspace(0, 1, 1 + int(np.ceil(np.linalg.norm(end - start) / (radius / 2)))):
                x, y = start + t * (end - start)
                inside = (axis[None, :] - x) ** 2 + (axis[:, None] - y) ** 2 <= radius**2
                self.medium[inside] = self.value("brush")

    def coords(self) -> Float[ndarray, "N 2"]:
        assert self.spec.grid is not None
        return unit_square(self.spec.grid[0]).numpy()

    def inputs(self) -> Float[ndarray, "N 1"]:
        return self.medium[:: self.stride, :: self.stride].reshape(-1, 1).astype(np.float32)

    def geometry(self) -> Geometry:
        return geometry_of(self.coords(), self.spec.grid)

    def medium_geometry(self) -> Geometry:
        """Grid of the medium, that of the solver."""
        return geometry_of(unit_square(self.size).numpy(), (self.size, self.size))

    def solve(self) -> Float[ndarray, "N 1"]:
        a = torch.from_numpy(self.medium.copy())
        if not (a.isfinite().all() and a.min() > 0):
            raise UserError("the solver takes a permeability above zero everywhere: paint over the rest")
        u = solve_at_cell_centres(a, torch.ones_like(a))[:: self.stride, :: self.stride]
        return self.finite_solution(u.reshape(-1, 1).numpy())

    def plot(self, named: dict[str, Float[ndarray, "N C"]]) -> LinePlot:
        assert self.spec.grid is not None
        side = self.spec.grid[0]
        row, x = round(self.value("line") * (side - 1)), np.linspace(0, 1, side).tolist()
        series = [
            Series(name, x, values.reshape(side, side)[row].tolist(), i, dashed=i > 0)
            for i, (name, values) in enumerate(named.items())
        ]
        return LinePlot(f"pressure at y = {row / (side - 1):.2f}", "x", "pressure", series)

    def quantities(self, values: Float[ndarray, "N C"]) -> list[Quantity]:
        side = round(len(values) ** 0.5)
        field = values[:, 0].reshape(side, side)
        total = np.trapezoid(np.trapezoid(field, dx=1 / (side - 1)), dx=1 / (side - 1))
        share = float((self.medium >= (LOW + HIGH) / 2).mean())
        return [
            Quantity("largest pressure", float(values.max())),
            Quantity("mean pressure", float(total)),
            Quantity("permeable share", 100 * share, "%"),
        ]

    def warnings(self) -> list[str]:
        low, high = float(self.medium.min()), float(self.medium.max())
        if low >= LOW and high <= HIGH:
            return []
        return [f"the permeability is {low:g} to {high:g}; in the training samples it is {LOW:g} or {HIGH:g}"]
