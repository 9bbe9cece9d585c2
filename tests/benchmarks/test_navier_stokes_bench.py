import numpy as np
import pytest
import torch

from benchmarks.navier_stokes import Candidate, compare_schemes, resample
from linearno.solvers.random_fields import periodic_field


@pytest.fixture
def start() -> torch.Tensor:
    return torch.stack([torch.from_numpy(periodic_field(np.random.default_rng(i), 32)) for i in range(2)])


def test_the_usual_scheme_is_nearer_the_truth_than_the_published_one_at_a_fraction_of_the_steps(start):
    truth = Candidate("rk4", 32, "float64", steps=128)
    others = [Candidate("euler", 32, "float64", steps=1000), Candidate("rk4", 32, "float64")]
    published, usual = compare_schemes(start, 2, truth, others, points=16)
    assert (published["dt"], usual["dt"]) == (1e-3, 1 / 32)
    for t in range(2):
        assert usual["error"][t] < published["error"][t] / 100
        assert usual["from_first"][t] == pytest.approx(published["error"][t], rel=0.02)
    assert published["from_first"] == [0, 0]
    assert published["error"][0] < published["error"][1] < 1e-3


def test_a_grid_that_lacks_modes_is_further_from_the_truth(start):
    truth = Candidate("rk4", 32, "float64")
    coarse, same = compare_schemes(start, 1, truth, [Candidate("rk4", 16), Candidate("rk4", 32)], points=16)
    assert coarse["error"][0] > 1e-2
    assert same["error"][0] < 1e-5


def test_resampling_keeps_every_mode_that_both_grids_carry(start):
    fine = resample(start, 48)
    band = resample(start, 31)  # all but the Nyquist modes
    torch.testing.assert_close(resample(fine, 31), band)
    torch.testing.assert_close(fine[:, ::3, ::3], resample(band, 48)[:, ::3, ::3])
    torch.testing.assert_close(resample(band, 32).mean(dim=(1, 2)), start.mean(dim=(1, 2)))
