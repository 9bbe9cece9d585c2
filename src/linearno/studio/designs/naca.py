"""NACA airfoil in a turbulent stream, as in AirfRANS: digits, speed and angle of attack by sliders.

The surrogate predicts velocity, pressure and turbulent viscosity at the nodes of a C-grid. Lift and drag
follow from them as in the benchmark.

Axes: N nodes, C channels, W nodes of the wall.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import SampleError, UserError
from linearno.core.randomness import numpy_generator
from linearno.data import Batch
from linearno.data.airfoil_nodes import CellFields, mesh_in_box, refine_flow
from linearno.data.airfrans import field_data
from linearno.data.airfrans_files import Simulation
from linearno.data.airfrans_metrics import PRESSURE_CHANNEL, coefficients
from linearno.data.airfrans_names import RULES, AirfransSplit, simulation_name
from linearno.data.airfrans_sets import as_simulation, grid_cells
from linearno.solvers import naca
from linearno.solvers.naca import AirfoilCase
from linearno.solvers.rans import airfoil_flows, refined_nodes, sample_case
from linearno.studio.designs.base import Design, LinePlot, Parameter, Quantity, Range, Series
from linearno.studio.geometry import Geometry, geometry_of_quads

CELLS = grid_cells(40)  # of the solver: 130 × 40
REFINEMENT = 2  # of the surrogate's nodes over the solver's, about 15,000
ANGLE, SPEED, THICKNESS = "angle", "speed", "thickness"


@dataclass
class NacaDesign(Design):
    """Digits of one of the two families, speed and angle of attack.

    Args:
        spec: fields of the run.
        split: split of the benchmark that the run was trained on.
    """

    split: AirfransSplit = "full"

    solver: ClassVar[str] = "Reynolds-averaged Navier–Stokes equations, Spalart–Allmaras, 130 × 40 cells"
    draws: ClassVar[bool] = True
    hint: ClassVar[str] = "Lift and drag are those of pressure and friction on the airfoil."

    def __post_init__(self) -> None:
        angles, reynolds = (
            (max(low, law[0]), min(high, law[1]))
            for (low, high), law in zip(limits(self.split), (naca.ANGLES, naca.REYNOLDS), strict=True)
        )
        speeds = reynolds[0] * naca.VISCOSITY, reynolds[1] * naca.VISCOSITY
        found = [
            Parameter(ANGLE, "angle of attack", 4.0, -10.0, 20.0, 0.1, angles, "°"),
            Parameter(SPEED, "speed", 60.0, 20.0, 120.0, 0.1, speeds, "m/s"),
            *self.camber_line(),
            Parameter(THICKNESS, "thickness", 12.0, 3.0, 30.0, 0.1, naca.THICKNESS, "%"),
        ]
        self.parameters = {parameter.name: parameter for parameter in found}
        self._sample: tuple[AirfoilCase, Simulation, Batch] | None = None

    @staticmethod
    @abstractmethod
    def camber_line() -> list[Parameter]:
        """Parameters of the digits before the thickness."""

    @property
    @abstractmethod
    def digits(self) -> tuple[float, ...]:
        """Digits as the solver takes them."""

    @property
    def case(self) -> AirfoilCase:
        return AirfoilCase(self.digits, self.value(SPEED), self.value(ANGLE))

    def draw(self, seed: int) -> None:
        """A random airfoil of the family by the law of the training samples."""
        rng = numpy_generator(seed)
        case = sample_case(rng)
        while len(case.digits) != len(self.digits):
            case = sample_case(rng)
        values = {ANGLE: case.angle, SPEED: case.speed, THICKNESS: case.digits[-1]}
        first = zip(self.camber_line(), case.digits, strict=False)
        for name, value in (values | {parameter.name: digit for parameter, digit in first}).items():
            self.set(name, value)

    def fill(self, name: str) -> None:
        """The airfoil without camber."""
        self.set(self.camber_line()[0].name, 0.0)

    def _current(self) -> tuple[AirfoilCase, Simulation, Batch]:
        """The case, its mesh with zero fields, and the sample of it, built when the case has changed."""
        case = self.case
        if self._sample is None or self._sample[0] != case:
            try:
                fine = refined_nodes([case], CELLS, REFINEMENT)[0].numpy()
            except SampleError as error:
                raise UserError(error.message) from None
            mesh, used = mesh_in_box(fine, CELLS.wake * REFINEMENT)
            simulation = as_simulation(mesh, np.zeros((len(used), 4)))
            data = field_data([simulation_name(case)], [simulation], torch.ones(4))
            self._sample = case, simulation, data.everything()
        return self._sample

    def coords(self) -> Float[ndarray, "N 2"]:
        return self._current()[1].nodes

    def inputs(self) -> Float[ndarray, "N 5"]:
        inputs = self._current()[2].inputs
        assert inputs is not None
        return inputs.reshape(-1, inputs.shape[-1]).numpy()

    def geometry(self) -> Geometry:
        simulation = self._current()[1]
        return geometry_of_quads(simulation.nodes, simulation.quads)

    def solve(self) -> Float[ndarray, "N 4"]:
        case = self.case
        try:
            flows = airfoil_flows([case], CELLS, turbulence="sa")
            flows.require_steady()
            fine = refined_nodes([case], CELLS, REFINEMENT)[0].numpy()
        except SampleError as error:
            raise UserError(error.message) from None
        cells = CellFields(*(part[0].numpy() for part in (flows.velocity, flows.pressure, flows.nut)))
        _, fields = refine_flow(flows.nodes[0].numpy(), fine, CELLS.wake, cells)
        return self.finite_solution(fields.astype(np.float32))

    def plot(self, named: dict[str, Float[ndarray, "N C"]]) -> LinePlot:
        case, simulation, _ = self._current()
        around = np.append(simulation.wall, simulation.wall[0])
        x, series = simulation.nodes[around, 0].tolist(), []
        for i, (name, values) in enumerate(named.items()):
            cp = 2 * values[around, PRESSURE_CHANNEL] / case.speed**2
            series.append(Series(name, x, cp.tolist(), i, dashed=i > 0))
        return LinePlot("pressure coefficient on the airfoil", "x", "Cp", series, inverted=True)

    def quantities(self, values: Float[ndarray, "N C"]) -> list[Quantity]:
        batch = self._current()[2]
        lift, drag = coefficients(torch.from_numpy(values).reshape(batch.targets.shape), batch)
        return [Quantity("lift coefficient", float(lift)), Quantity("drag coefficient", float(drag))]


class FourDigitDesign(NacaDesign):
    """NACA airfoils of four digits."""

    title: ClassVar[str] = "NACA airfoil of four digits"

    @staticmethod
    def camber_line() -> list[Parameter]:
        return [
            Parameter("camber", "camber", 2.0, 0.0, 9.5, 0.1, naca.CAMBER, "%"),
            Parameter("position", "position of the camber", 4.0, 0.0, 9.5, 0.1, naca.CAMBER_POSITION, "/10"),
        ]

    @property
    def digits(self) -> tuple[float, ...]:
        return self.value("camber"), self.value("position"), self.value(THICKNESS)

    def warnings(self) -> list[str]:
        """Also of positions that the law of AirfRANS rounds to no camber."""
        found, position = super().warnings(), self.value("position")
        if 0 < position < naca.LEAST_POSITION:
            found.append(
                f"position of the camber = {position:.3g}: the training airfoils have 0 (no camber) or "
                f"at least {naca.LEAST_POSITION:g}"
            )
        return found


class FiveDigitDesign(NacaDesign):
    """NACA airfoils of five digits; the third one, reflex, has no effect in AirfRANS and stays 0."""

    title: ClassVar[str] = "NACA airfoil of five digits"

    @staticmethod
    def camber_line() -> list[Parameter]:
        return [
            Parameter("lift", "design lift", 2.0, 0.0, 6.0, 0.1, naca.LIFT, "· 3/20"),
            Parameter("position", "position of the camber", 4.0, 0.5, 9.0, 0.1, naca.LIFT_POSITION, "/20"),
        ]

    @property
    def digits(self) -> tuple[float, ...]:
        return self.value("lift"), self.value("position"), 0.0, self.value(THICKNESS)


def limits(split: AirfransSplit) -> tuple[Range, Range]:
    """Angles and Reynolds numbers to which the rule of a split limits its training samples."""
    reynolds, angles = RULES.get(split, ((-np.inf, np.inf), (-np.inf, np.inf)))
    return angles, reynolds
