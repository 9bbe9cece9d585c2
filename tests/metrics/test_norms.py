from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.metrics import relative_l2, relative_mae

FIXTURE = Path(__file__).parents[1] / "fixtures" / "losses.npz"


@pytest.mark.parametrize("name", ["rel", "rel3"])
def test_the_sum_over_samples_is_the_published_loss(name):
    published = np.load(FIXTURE)
    prediction, truth = (torch.from_numpy(published[f"{name}/{part}"]) for part in ("pred", "true"))
    assert relative_l2(prediction, truth).sum().item() == pytest.approx(
        float(published[f"{name}/sum"]), rel=1e-6
    )


def test_each_sample_has_the_published_value():
    published = {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(FIXTURE).items()}
    torch.testing.assert_close(
        relative_l2(published["rel/pred"], published["rel/true"]), published["rel/none"]
    )


def test_the_mean_over_samples_is_the_published_relative_mae():
    published = {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(FIXTURE).items()}
    errors = relative_mae(published["rel3/pred"], published["rel3/true"])
    assert errors.shape == (2,)
    assert errors.mean().item() == pytest.approx(published["rel3/relative_mae"].item(), rel=1e-6)


def test_the_relative_mae_weighs_a_sample_by_its_own_truth():
    truth = torch.tensor([[[3.0], [-1.0]], [[10.0], [0.0]]])
    error = torch.tensor([[[1.0], [-1.0]], [[-1.0], [0.0]]])
    torch.testing.assert_close(relative_mae(truth + error, truth), torch.tensor([1 / 2, 1 / 10]))


def test_points_and_channels_form_one_norm():
    truth = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]])
    error = torch.tensor([[[0.0, 1.0], [2.0, 2.0]], [[1.0, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(relative_l2(truth + error, truth), torch.tensor([3 / 5, 1 / 2]))


def test_a_common_factor_changes_nothing():
    prediction, truth = torch.randn(
        2, 3, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(relative_l2(-5 * prediction, -5 * truth), relative_l2(prediction, truth))


@pytest.mark.parametrize("metric", [relative_l2, relative_mae])
def test_every_segment_of_a_packed_batch_is_a_sample(metric):
    sizes = [4, 1, 30]
    prediction, truth = torch.randn(
        2, 1, 35, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    pairs = zip(prediction.split(sizes, 1), truth.split(sizes, 1), strict=True)
    packed = metric(prediction, truth, torch.tensor([0, 4, 5, 35]))
    torch.testing.assert_close(packed, torch.cat([metric(*pair) for pair in pairs]))
