"""NACA airfoils of four and five digits, with real-valued digits, and the sampling law of AirfRANS.

Axes: B airfoils, N points of a contour. Chord 1, leading edge near the origin, sharp trailing edge at (1, 0).
"""

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import brentq
from torch import Tensor

from linearno.core.errors import SampleError
from linearno.solvers.steady_euler import crosses_itself

VISCOSITY = 1.56e-5  # m²/s
REYNOLDS = (2e6, 6e6)  # AirfRANS draws Reynolds numbers,
ANGLES = (-5.0, 15.0)  # angles of attack in degrees,
CAMBER, CAMBER_POSITION = (0.0, 7.0), (0.0, 7.0)  # the first digits of the four-digit series,
LEAST_POSITION = 1.5  # (smaller positions become 0)
LIFT, LIFT_POSITION = (0.0, 4.0), (3.0, 8.0)  # those of the five-digit series
THICKNESS = (5.0, 20.0)  # and the thickness from these ranges,
DECIMALS = 3  # and rounds them
MAX_THICKNESS = 60.0  # in percent of the chord; AirfRANS and the classical series end far below
MAX_CAMBER = 20.0  # largest first digit
CHECKED_POINTS = 201  # of a contour, tested for crossings
THICKNESS_POWERS = (-0.1260, -0.3516, 0.2843, -0.1036)  # of x, x², x³, x⁴; closes the trailing edge
LAW_TOLERANCE = 1e-3  # relative, for rounded speeds and angles at the ends of the law

log = logging.getLogger(__name__)


class AirfoilCase(NamedTuple):
    """Airfoil of chord 1 m in a stream of air.

    Args:
        digits: (camber, its position, thickness) for four digits, (lift, its position, 0 or 1, which has
            no effect, thickness) for five: camber and thickness in percent of the chord, position of the
            largest camber in tenths of the chord for four digits and in twentieths for five, lift in 3/20 of
            the ideal lift coefficient. A position of 0 among four digits means no camber.
        speed: of the stream in m/s.
        angle: angle of attack in degrees.
    """

    digits: tuple[float, ...]
    speed: float
    angle: float

    @property
    def reynolds(self) -> float:
        return self.speed / VISCOSITY


class Sections(NamedTuple):
    """Shapes of airfoils: camber lines are cubic on both sides of a break.

    Args:
        thickness: as a fraction of the chord.
        break_point: x at which the camber line changes its polynomial.
        height: powers 0 to 3 of the camber line's height before and after the break.
        slope: powers 0 to 2 of its slope.
    """

    thickness: Float64[Tensor, "B"]
    break_point: Float64[Tensor, "B"]
    height: Float64[Tensor, "B 2 4"]
    slope: Float64[Tensor, "B 2 3"]


def sample_case(rng: np.random.Generator) -> AirfoilCase:
    """Draw a case by the law of AirfRANS: uniform parameters, four or five digits with equal chance."""

    def draw(limits: tuple[float, float]) -> float:
        return round(float(rng.uniform(*limits)), DECIMALS)

    speed = round(float(rng.uniform(*REYNOLDS)) * VISCOSITY, DECIMALS)
    angle = draw(ANGLES)
    if rng.integers(2):
        camber, position = draw(CAMBER), draw(CAMBER_POSITION)
        first: tuple[float, ...] = (camber, position if position >= LEAST_POSITION else 0.0)
    else:
        first = (draw(LIFT), draw(LIFT_POSITION), float(rng.integers(2)))
    return AirfoilCase((*first, draw(THICKNESS)), speed, angle)


def naca_sections(digits: Sequence[tuple[float, ...]]) -> Sections:
    """Shapes with these digits; a SampleError for digits that give no airfoil."""
    rows = [_section(index, row) for index, row in enumerate(digits)]
    thickness, breaks, heights = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    slopes = heights[..., 1:] * heights.new_tensor([1.0, 2.0, 3.0])
    for index, row in enumerate(digits):
        if len(row) == 3 and row[1] == 0:  # AirfRANS tilts the thickness of these, though their camber is 0
            slopes[index, :, 1] = -2 * row[0] / 100
    sections = Sections(thickness, breaks, heights, slopes)
    parameters = torch.linspace(-math.pi, math.pi, CHECKED_POINTS, dtype=torch.float64)
    for index, line in enumerate(contour(sections, parameters.expand(len(rows), -1))):
        if crosses_itself(line):
            raise SampleError(
                index,
                f"NACA {_name(digits[index])}: the contour crosses itself; expected less camber or thickness",
            )
    return sections


def contour(sections: Sections, parameter: Float64[Tensor, "B N"]) -> Float64[Tensor, "B N 2"]:
    """Points of the contours.

    Args:
        sections: shapes.
        parameter: s from -π at the trailing edge along the lower side to 0 at the leading edge, and along the
            upper side to π; x is near (1 - cos s)/2.
    """
    x = (1 - parameter.cos()) / 2
    powers = torch.stack([x**power for power in range(5)], dim=-1)
    root = (parameter / 2).sin().abs()
    half = 0.2969 * root + powers[..., 1:] @ x.new_tensor(THICKNESS_POWERS)
    half = 5 * sections.thickness[:, None] * half * parameter.sign()
    behind = (x >= sections.break_point[:, None]).long()
    height = (powers[..., :4] * _choose(sections.height, behind)).sum(dim=-1)
    slope = (powers[..., :3] * _choose(sections.slope, behind)).sum(dim=-1)
    cosine = 1 / torch.sqrt(1 + slope * slope)
    points = torch.stack([x - half * slope * cosine, height + half * cosine], dim=-1)
    edge = (parameter.abs() >= math.pi)[..., None]
    return torch.where(edge, points.new_tensor([1.0, 0.0]), points)


def _choose(powers: Float64[Tensor, "B 2 K"], behind: Tensor) -> Float64[Tensor, "B N K"]:
    return torch.take_along_dim(powers[:, None], behind[..., None, None], dim=2)[:, :, 0]


def warn_outside_law(cases: Sequence[AirfoilCase]) -> None:
    """Warn of Reynolds numbers and angles that AirfRANS does not contain."""
    for name, values, (low, high) in (
        ("Reynolds number", [case.reynolds for case in cases], REYNOLDS),
        ("angle of attack", [case.angle for case in cases], ANGLES),
    ):
        slack = LAW_TOLERANCE * (high - low)
        outside = [(i, value) for i, value in enumerate(values) if not low - slack <= value <= high + slack]
        if outside:
            index, value = outside[0]
            log.warning(
                "%s of %d of %d airfoils outside of the law of AirfRANS, %g to %g: sample %d has %g",
                name, len(outside), len(cases), low, high, index, value,
            )  # fmt: skip


def require_flow(cases: Sequence[AirfoilCase]) -> None:
    """Raise for speeds and angles that are no flow."""
    for index, case in enumerate(cases):
        if not (math.isfinite(case.speed) and case.speed > 0):
            raise SampleError(index, f"expected a speed above 0 in m/s, got {case.speed!r}")
        if not (math.isfinite(case.angle) and abs(case.angle) <= 90):
            raise SampleError(
                index, f"expected an angle of attack from -90 to 90 degrees, got {case.angle!r}"
            )


def _section(index: int, digits: tuple[float, ...]) -> tuple[float, float, list[list[float]]]:
    """Thickness, break point, and powers of the camber line before and after it."""
    name = _name(digits)
    if len(digits) not in (3, 4) or not all(math.isfinite(digit) for digit in digits):
        raise SampleError(
            index,
            f"NACA {name}: expected 3 finite numbers (camber, position, thickness) or 4 (lift, position, "
            "reflex, thickness)",
        )
    if not 0 < digits[-1] <= MAX_THICKNESS:
        raise SampleError(
            index,
            f"NACA {name}: expected a thickness above 0 and up to {MAX_THICKNESS:g} percent of the chord",
        )
    if not 0 <= digits[0] <= MAX_CAMBER:
        raise SampleError(index, f"NACA {name}: expected a first digit from 0 to {MAX_CAMBER:g}")
    line = _four_digit_camber if len(digits) == 3 else _five_digit_camber
    break_point, height = line(index, digits)
    return digits[-1] / 100, break_point, height


def _name(digits: Sequence[float]) -> str:
    return f"({', '.join(f'{digit:g}' for digit in digits)})"


def _four_digit_camber(index: int, digits: tuple[float, ...]) -> tuple[float, list[list[float]]]:
    """Two parabolas with height m and slope 0 at x = p."""
    m, p = digits[0] / 100, digits[1] / 10
    if not 0 <= p < 1:
        raise SampleError(index, f"NACA {_name(digits)}: expected a second digit from 0 to below 10")
    if p == 0:
        return 0.5, [[0.0] * 4] * 2
    front, rear = m / p**2, m / (1 - p) ** 2
    return p, [[0.0, 2 * p * front, -front, 0.0], [rear * (1 - 2 * p), 2 * p * rear, -rear, 0.0]]


def _five_digit_camber(index: int, digits: tuple[float, ...]) -> tuple[float, list[list[float]]]:
    """A cubic before x = r and a straight line after it.

    The third digit stands for a reflexed line. In AirfRANS it has no effect: the factor of its cubic after r,
    3 (r - x_highest)² - r³, is zero for the r of a line without reflex, which AirfRANS uses for both.
    """
    lift, highest, reflex = 3 / 20 * digits[0], digits[1] / 20, digits[2]
    if reflex not in (0, 1):
        raise SampleError(index, f"NACA {_name(digits)}: expected 0 or 1 (reflex) as third digit")
    limit = 1 - math.sqrt(1 / 3)
    if not 0 < highest < limit:
        raise SampleError(
            index, f"NACA {_name(digits)}: expected a second digit above 0 and below {20 * limit:.2f}"
        )
    r = brentq(lambda m: m * (1 - math.sqrt(m / 3)) - highest, 0, 1, xtol=1e-15)
    ideal = (3 * r - 7 * r**2 + 8 * r**3 - 4 * r**4) / math.sqrt(r * (1 - r))
    ideal -= 1.5 * (1 - 2 * r) * (math.pi / 2 - math.asin(1 - 2 * r))
    k = lift / ideal
    return r, [[0.0, k * r**2 * (3 - r), -3 * k * r, k], [k * r**3, -k * r**3, 0.0, 0.0]]
