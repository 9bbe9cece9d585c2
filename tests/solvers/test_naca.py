"""NACA shapes, the sampling law, and digits that are refused."""

import math

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError
from linearno.solvers.naca import (
    VISCOSITY,
    AirfoilCase,
    contour,
    naca_sections,
    sample_case,
    warn_outside_law,
)


def points(digits, count=401):
    parameter = torch.linspace(-math.pi, math.pi, count, dtype=torch.float64)[None]
    return contour(naca_sections([digits]), parameter)[0].numpy()


def camber_and_thickness(digits):
    """Camber line and thickness at its points, from both sides."""
    line = points(digits)
    lower, upper = line[200::-1], line[200:]
    return (lower + upper) / 2, np.linalg.norm(upper - lower, axis=1)


def test_thickness_is_that_of_the_digits_at_30_percent_of_the_chord():
    for digits in ((0.0, 0.0, 12.0), (4.0, 4.0, 15.0), (2.0, 3.0, 0.0, 9.0)):
        middle, thickness = camber_and_thickness(digits)
        at = thickness.argmax()
        assert thickness[at] == pytest.approx(digits[-1] / 100, rel=2e-3)
        assert middle[at, 0] == pytest.approx(0.3, abs=0.02)


def test_camber_is_that_of_four_digits():
    middle, _ = camber_and_thickness((4.0, 4.0, 12.0))
    at = middle[:, 1].argmax()
    assert middle[at, 1] == pytest.approx(0.04, rel=1e-3)
    assert middle[at, 0] == pytest.approx(0.4, abs=0.01)


def test_ideal_lift_and_position_of_the_camber_are_those_of_five_digits():
    """NACA 230xx: ideal lift coefficient 0.3, largest camber at 15 % (thin airfoil theory)."""
    middle, _ = camber_and_thickness((2.0, 3.0, 0.0, 12.0))
    assert middle[middle[:, 1].argmax(), 0] == pytest.approx(0.15, abs=0.005)
    angle = np.arccos(1 - 2 * middle[:, 0])
    slope = np.gradient(middle[:, 1], middle[:, 0])
    second_ideal = 4 * np.trapezoid(slope * np.cos(angle), angle) / 2
    assert second_ideal == pytest.approx(0.3, rel=0.02)


def test_the_third_of_five_digits_has_no_effect_as_in_airfrans():
    np.testing.assert_array_equal(points((2.0, 4.0, 1.0, 12.0)), points((2.0, 4.0, 0.0, 12.0)))


def test_contours_are_closed_and_smooth_at_the_break_of_the_camber_line():
    for digits in ((7.0, 4.0, 20.0), (4.0, 8.0, 0.0, 20.0), (4.0, 3.0, 1.0, 5.0), (7.0, 0.0, 12.0)):
        line = points(digits, 2001)
        np.testing.assert_array_equal(line[[0, -1]], [[1, 0], [1, 0]])
        turns = np.diff(np.unwrap(np.arctan2(*np.diff(line[50:-50], axis=0).T)))
        assert np.abs(turns).max() < 0.1


def test_samples_follow_the_law_of_airfrans():
    cases = [sample_case(np.random.default_rng(seed)) for seed in range(500)]
    reynolds, angles = np.array([case.reynolds for case in cases]), np.array([case.angle for case in cases])
    four = [case.digits for case in cases if len(case.digits) == 3]
    assert 0.4 < len(four) / len(cases) < 0.6
    for values, low, high in (
        (reynolds, 2e6, 6e6),
        (angles, -5, 15),
        (np.array([case.digits[-1] for case in cases]), 5, 20),
    ):
        assert low - 50 < values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() < high + 50
    positions = np.array([digits[1] for digits in four])
    assert ((positions == 0) | (positions >= 1.5)).all()
    assert (positions == 0).mean() == pytest.approx(1.5 / 7, abs=0.06)
    assert {case.digits[2] for case in cases if len(case.digits) == 4} == {0.0, 1.0}
    for case in cases:
        assert all(round(value, 3) == value for value in (*case.digits, case.speed, case.angle))


@pytest.mark.parametrize(
    ("digits", "message"),
    [
        ((0.0, 0.0, 0.0), "expected a thickness above 0"),
        ((2.0, 4.0), "expected 3 finite numbers"),
        ((math.nan, 4.0, 12.0), "expected 3 finite numbers"),
        ((2.0, 12.0, 12.0), "expected a second digit from 0 to below 10"),
        ((25.0, 4.0, 12.0), "expected a first digit from 0 to 20"),
        ((2.0, 4.0, 0.5, 12.0), r"expected 0 or 1 \(reflex\) as third digit"),
        ((2.0, 9.0, 0.0, 12.0), "expected a second digit above 0 and below 8.45"),
        ((20.0, 0.5, 20.0), "crosses itself"),
    ],
)
def test_digits_that_give_no_airfoil_are_refused_in_one_line_with_their_sample(digits, message):
    with pytest.raises(SampleError, match=message) as caught:
        naca_sections([(0.0, 0.0, 12.0), digits])
    assert caught.value.index == 1
    assert "\n" not in str(caught.value)


def test_flows_outside_of_the_law_are_warned_of(caplog):
    warn_outside_law([AirfoilCase((0.0, 0.0, 12.0), 2e6 * VISCOSITY, -5.0)])
    assert not caplog.messages
    inside = AirfoilCase((0.0, 0.0, 12.0), 4e6 * VISCOSITY, 0.0)
    warn_outside_law([inside, inside._replace(speed=10.0), inside._replace(angle=20.0)])
    speed, angle = caplog.messages
    assert "Reynolds number of 1 of 3 airfoils outside of the law of AirfRANS" in speed
    assert "sample 1 has 641026" in speed
    assert "angle of attack of 1 of 3" in angle
    assert "sample 2 has 20" in angle
