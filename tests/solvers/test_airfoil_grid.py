"""C-grids around airfoils: no folds, equal sides of the wake, refinement."""

import math

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.solvers.airfoil_grid import GridCells, airfoil_grid
from linearno.solvers.euler import quad_areas
from linearno.solvers.naca import naca_sections, sample_case
from linearno.solvers.stretching import geometric_positions, two_sided_positions

CELLS = GridCells(12, 20, 16)
EXTREME = [(7.0, 4.0, 5.0), (4.0, 8.0, 0.0, 20.0), (7.0, 1.5, 5.0), (4.0, 3.0, 1.0, 5.0), (0.0, 0.0, 5.0)]


def grids(digits, degrees, refinement=1, cells=CELLS):
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    reynolds = torch.full_like(angle, 4e6)
    return airfoil_grid(naca_sections(digits), angle, reynolds, cells, refinement=refinement)


def test_no_cell_is_inverted_for_extreme_and_random_airfoils():
    cases = [sample_case(np.random.default_rng(seed)) for seed in range(40)]
    digits = [*EXTREME, *EXTREME, *(case.digits for case in cases)]
    degrees = [15.0] * 5 + [-5.0] * 5 + [case.angle for case in cases]
    assert (quad_areas(grids(digits, degrees)) < 0).all()


def test_both_sides_of_the_wake_are_equal_to_the_bit_and_the_wall_is_the_airfoil():
    nodes = grids(EXTREME, [0.0, 5.0, 10.0, 15.0, -5.0])
    assert torch.equal(nodes[:, : CELLS.wake + 1, 0], nodes.flip(1)[:, : CELLS.wake + 1, 0])
    x, y = nodes[-1, CELLS.wake : -CELLS.wake, 0].unbind(-1)  # NACA 0005
    thickness = 0.25 * (
        0.2969 * x.clamp(min=0).sqrt() - 0.126 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4
    )
    torch.testing.assert_close(y.abs(), thickness, rtol=0, atol=1e-9)


def test_cells_on_the_wall_have_the_height_of_viscous_lengths():
    nodes = grids(EXTREME, [0.0] * 5)[:, CELLS.wake : -CELLS.wake]
    height = (nodes[:, :, 1] - nodes[:, :, 0]).norm(dim=-1)
    torch.testing.assert_close(height, torch.full_like(height, 15 / 4e6), rtol=2e-3, atol=0)


@pytest.mark.parametrize("refinement", [2, 3])
def test_every_rth_node_of_a_refined_grid_is_one_of_the_grid(refinement):
    coarse, fine = (grids(EXTREME, [15.0] * 5, r) for r in (1, refinement))
    torch.testing.assert_close(fine[:, ::refinement, ::refinement], coarse, rtol=1e-10, atol=1e-10)
    assert (quad_areas(fine) < 0).all()


def test_an_airfoil_whose_grid_folds_is_refused_with_its_sample():
    with pytest.raises(SampleError, match="the grid around this airfoil folds") as caught:
        grids([(0.0, 0.0, 12.0), (15.0, 1.0, 60.0)], [0.0, 0.0])
    assert caught.value.index == 1


def test_a_grid_with_too_few_cells_is_refused():
    with pytest.raises(UserError, match="expected a grid of at least"):
        grids(EXTREME[:1], [0.0], cells=GridCells(1, 20, 16))


def test_stretched_positions_have_the_sizes_of_their_ends():
    first, last, total = (
        torch.tensor(values, dtype=torch.float64) for values in ([0.001, 0.2], [0.05, 0.1], [1, 1])
    )
    for index, positions in enumerate(two_sided_positions(first, last, total, 40, 1)):
        sizes = positions.diff()
        assert positions[-1] == 1
        assert (sizes > 0).all()
        if index == 0:
            assert sizes[0] == pytest.approx(0.001, rel=0.1)
            assert sizes[-1] == pytest.approx(0.05, rel=0.1)
    sizes = geometric_positions(first[None, :1], total[None, :1], 40, 1)[0, 0].diff()
    assert sizes[0] == pytest.approx(0.001, rel=1e-9)
    ratios = sizes[1:] / sizes[:-1]
    assert float(ratios.max() - ratios.min()) < 1e-9
    assert math.isclose(float(sizes.sum()), 1)
