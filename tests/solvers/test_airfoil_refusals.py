"""Airfoils, grids and flows that are refused, each with its sample."""

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.solvers import airfoil, steady_euler
from linearno.solvers.airfoil import airfoil_nodes, free_stream, solve_airfoil
from linearno.solvers.steady_euler import solve_euler
from tests.solvers.test_airfoil import HEIGHTS, grid, samples


def test_a_sample_that_is_never_solved_is_named(monkeypatch):
    monkeypatch.setattr(steady_euler, "MAX_STEPS", 5)
    with pytest.raises(SampleError, match="no flow found for 10 random airfoils") as caught:
        samples([3, 4])
    assert caught.value.index == 0


def test_a_flow_that_does_not_become_steady_is_one_line_that_names_the_sample(monkeypatch):
    monkeypatch.setattr(steady_euler, "MAX_STEPS", 5)
    with pytest.raises(
        SampleError, match=r"did not become steady in 3 × 5 steps: .*expected 1e-06"
    ) as caught:
        solve_airfoil(grid())
    assert caught.value.index == 0
    assert "\n" not in str(caught.value)


def test_a_grid_that_folds_over_is_refused_with_its_sample():
    broken = grid()
    broken[0, 22, 3] = broken[0, 22, 6]
    with pytest.raises(SampleError, match="the grid folds over itself") as caught:
        solve_airfoil(torch.cat([grid(), broken]))
    assert caught.value.index == 1
    with pytest.raises(SampleError, match="the grid folds over itself"):
        solve_airfoil(grid().flip(1))
    torn = grid()
    torn[0, 2, 0] += 1e-3
    with pytest.raises(SampleError, match=r"sample 0: .* are not the same points"):
        solve_airfoil(torn)


def test_a_body_that_crosses_itself_is_refused_though_no_quad_of_its_grid_is_turned_over():
    """Between the controls of its box a cubic reaches further than they do."""
    with pytest.raises(SampleError, match="the wall crosses itself"):
        airfoil_nodes(np.array([0, 0.099, 0.099, 0, 0, -0.099, -0.099, 0]), 45)


def test_any_heights_close_the_body_to_the_bit():
    rng = np.random.default_rng(0)
    for heights in rng.uniform(-0.05, 0.05, (100, 8)):
        nodes = airfoil_nodes(heights, 45)
        np.testing.assert_array_equal(nodes[:11, 0], nodes[:-12:-1, 0])


def test_a_drawn_body_that_cannot_be_gridded_is_named_in_its_batch(monkeypatch):
    drawn = iter([HEIGHTS, HEIGHTS, np.full(8, 0.1)])
    monkeypatch.setattr(airfoil, "draw_heights", lambda rng: next(drawn))
    with pytest.raises(SampleError, match="sample 2: expected 8 heights within") as caught:
        samples([0, 1, 2])
    assert caught.value.index == 2


@pytest.mark.parametrize("heights", [np.full(8, 0.1), np.array([0, np.nan, *[0] * 6]), np.zeros(7)])
def test_a_body_that_would_leave_its_box_is_refused(heights):
    with pytest.raises(UserError, match=r"expected 8 heights within ±0.1, half the height of the box"):
        airfoil_nodes(heights, 45)


@pytest.mark.parametrize("resolution", [23, 44, 46, 220])
def test_a_resolution_that_is_no_c_grid_is_refused(resolution):
    with pytest.raises(UserError, match=f"resolution {resolution} does not fit"):
        samples([0], resolution)


def test_numbers_that_make_no_flow_are_refused():
    nodes = grid()
    with pytest.raises(UserError, match=r"expected C-grids \(samples, 22 n \+ 1, m, 2\)"):
        solve_airfoil(nodes[:, :-1])
    with pytest.raises(UserError, match=r"an odd n from 5"):
        solve_euler(nodes[:, :-1], free_stream(nodes[:, :-1]))
    with pytest.raises(UserError, match=r"expected finite density, velocity and pressure \(1, 4, 45, 11\)"):
        solve_euler(nodes, -free_stream(nodes), cut=11)
    broken = grid()
    broken[0, 3, 4, 1] = torch.nan
    with pytest.raises(SampleError, match="expected finite nodes"):
        solve_airfoil(broken)
