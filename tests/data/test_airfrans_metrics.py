"""Loss, errors and forces on two packed airfoils, and the recipes."""

from dataclasses import replace

import pytest
import torch

from linearno.data import DATASETS, FieldData
from linearno.data.airfrans import open_airfrans
from linearno.data.airfrans_metrics import (
    coefficients,
    corners_as_edges,
    drag_error,
    edges_as_corners,
    force_table,
    lift_error,
    lift_spearman,
    surface,
    volume,
    volume_and_surface_loss,
    volume_nut,
    with_no_slip,
)
from linearno.models import build_model
from linearno.recipes import RECIPES, recipe
from tests.data.airfrans_toy import config, make_set

PUBLISHED_SIZES = {  # numbers of parameters
    "linearno": 3_358_788 - 64,  # without the temperatures that the published code never uses
    "mlp": 19_988,
    "graphsage": 29_204,
    "pointnet": 75_244,
    "graphunet": 65_820,
}


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return open_airfrans(config(make_set(tmp_path_factory.mktemp("airfrans"), files=False)))


@pytest.fixture
def batch(splits):
    return splits.test.batch(torch.arange(2))


def shifted(batch, on_wall: float, elsewhere: float) -> torch.Tensor:
    """Predictions with these errors, in deviations of the training samples."""
    scale = batch.aux["scale"][0]
    error = torch.where(batch.surface, on_wall, elsewhere)[..., None] * scale
    return batch.targets + error


def test_volume_and_surface_are_squared_errors_of_the_standardised_pressure(splits, batch):
    deviation = splits.train.targets.double().std(dim=0).float()
    torch.testing.assert_close(batch.aux["scale"], deviation.expand(2, -1), rtol=1e-4, atol=2e-8)
    prediction = shifted(batch, 2.0, 3.0)
    torch.testing.assert_close(surface(prediction, batch), torch.full((2,), 4.0), rtol=1e-3, atol=0)
    for metric in (volume, volume_nut):
        torch.testing.assert_close(metric(prediction, batch), torch.full((2,), 9.0), rtol=1e-3, atol=0)
    other_channels = prediction.clone()
    other_channels[..., 2] = batch.targets[..., 2]
    assert (volume(other_channels, batch) == 0).all()
    assert (surface(other_channels, batch) == 0).all()


def test_the_loss_is_the_mean_off_the_wall_plus_the_mean_on_it(batch):
    prediction = batch.targets + torch.where(batch.surface, 2.0, 3.0)[..., None]
    loss = volume_and_surface_loss(prediction, batch)
    torch.testing.assert_close(loss, torch.full((2,), 13.0), rtol=1e-3, atol=0)
    without = batch._replace(surface=torch.zeros_like(batch.surface))
    assert volume_and_surface_loss(prediction, without).isfinite().all()


def test_velocity_and_viscosity_on_the_wall_are_known(batch):
    prediction = with_no_slip(torch.ones_like(batch.targets), batch)
    assert (prediction[batch.surface] == torch.tensor([0.0, 0.0, 1.0, 0.0])).all()
    assert (prediction[~batch.surface] == 1).all()


def test_errors_of_forces_are_relative_and_zero_for_the_truth(batch):
    for metric in (lift_error, drag_error):
        assert (metric(batch.targets, batch) == 0).all()
    twice = batch.targets * 2  # pressure and velocity, so the forces
    for metric in (lift_error, drag_error):
        torch.testing.assert_close(metric(twice, batch), torch.ones(2, dtype=torch.float64))


def test_forces_do_not_depend_on_predictions_that_are_known(batch):
    slipping = torch.where(
        batch.surface[..., None], batch.targets + torch.tensor([5.0, 5, 0, 5]), batch.targets
    )
    for found, true in zip(coefficients(slipping, batch), coefficients(batch.targets, batch), strict=True):
        assert torch.equal(found, true)


def test_packed_samples_have_the_coefficients_of_each(splits, batch):
    together = coefficients(batch.targets, batch)
    for index in range(2):
        one = splits.test.batch(torch.tensor([index]))
        for packed, alone in zip(together, coefficients(one.targets, one), strict=True):
            torch.testing.assert_close(packed[index : index + 1], alone)


def test_the_rank_correlation_is_that_of_the_order(splits):
    targets, offsets = splits.test.targets, splits.test.offsets.tolist()
    assert lift_spearman(targets, splits.test) == pytest.approx(1)
    assert lift_spearman(-targets, splits.test) == pytest.approx(-1)
    assert lift_spearman(torch.zeros_like(targets), splits.test) == 0  # undefined
    table = force_table(targets, splits.test)
    assert set(table) == {"angle", "speed", "lift", "drag", "true_lift", "true_drag"}
    assert len(table["angle"]) == len(offsets) - 1


def test_quadrilaterals_survive_as_edges_of_a_batch():
    quads = torch.arange(12).reshape(3, 4)
    edges = corners_as_edges(quads)
    assert edges[:, :2].T.tolist() == [[0, 1], [2, 3]]
    assert torch.equal(edges_as_corners(edges + 5), quads + 5)


def test_recipes_have_the_published_protocol_and_sizes():
    names = [name for name in RECIPES if name.startswith("airfrans")]
    assert {name.partition("/")[0] for name in names} == {
        *("airfrans", "airfrans-scarce", "airfrans-reynolds", "airfrans-aoa", "airfrans-covering")
    }
    found = recipe("airfrans", "linearno")
    training = found.training
    assert (training.epochs, training.batch, training.points, training.lr) == (400, 1, 32_000, 1e-3)
    assert (training.optimizer, training.weight_decay, training.clip) == ("adam", 0, None)
    assert (training.loss.kind, training.loss.scaled) == ("benchmark", True)
    assert recipe("airfrans", "transolver").training.epochs == 398
    assert recipe("airfrans-aoa", "lno").data.split == "aoa"
    assert recipe("airfrans-covering", "mlp").task.points == 32_000
    assert recipe("airfrans", "graphsage").task.name == "covering"  # its graph is that of drawn points
    spec = DATASETS["airfrans"].layout(found.data).spec
    for name, size in PUBLISHED_SIZES.items():
        model = build_model(recipe("airfrans", name).model, spec)
        assert sum(part.numel() for part in model.parameters()) == size, name


def test_all_models_of_the_papers_table_are_listed():
    table = {
        *("linearno", "transolver", "transolver++", "lno", "lrsa", "gnot", "galerkin", "geo-fno", "mlp"),
        *("graphsage", "pointnet", "graphunet", "meshgraphnet", "gno", "gino"),
    }
    assert set(DATASETS["airfrans"].models) == table


def test_one_sample_has_no_rank_correlation(splits):
    one = splits.test.subset(torch.tensor([0]))
    assert isinstance(one, FieldData)
    assert lift_spearman(one.targets, replace(one)) == 0
