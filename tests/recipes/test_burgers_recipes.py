"""Burgers' equation is completed as published."""

from itertools import product

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from linearno.data.sensor_sampling import observed_count
from linearno.recipes import RECIPES
from linearno.training.optimizer import Schedule, make_optimizer

OBSERVED = {  # the share of the points, and their number of 64 times × 128 places
    "burgers20": (0.2, 1638),
    "burgers10": (0.1, 819),
    "burgers5": (0.05, 409),
    "burgers1": (0.01, 81),
    "burgers05": (0.005, 40),
}
DEPTH_AND_SLICES = {"linearno": (4, 48), "linearno-paper": (8, 256)}  # of the published code, of the paper
ALL = [f"{benchmark}/{model}" for benchmark, model in product(OBSERVED, DEPTH_AND_SLICES)]


@pytest.fixture(params=ALL)
def config(request):
    return RECIPES[request.param]()


def test_every_published_share_of_the_points_has_a_recipe():
    linearno = (name for name in RECIPES if name.startswith("burgers") and "/linearno" in name)
    assert sorted(linearno) == sorted(ALL)


def test_a_recipe_observes_the_share_that_its_name_says(config):
    ratio, count = OBSERVED[config.recipe.split("/")[0]]
    assert (config.task.name, config.task.ratio) == ("completion", ratio)
    assert observed_count(64 * 128, config.task.ratio) == count
    assert config.data.sizes == {"train": 4096, "test": 128, "val": 128}


def test_the_recipes_are_the_published_settings(config):
    training = config.training
    assert (training.epochs, training.batch, training.accumulate) == (500, 4, 1)
    assert training.eval_batch == 1  # in the test every sample has points of its own
    assert (training.optimizer, training.lr, training.betas) == ("adam", 1e-3, (0.9, 0.999))
    assert (training.weight_decay, training.clip) == (0, 1000)
    assert (training.schedule, training.schedule_every, training.start_factor) == ("onecycle", "step", 1e4)
    assert (training.validation, training.ema) == (0, None)  # the last epoch is the result


def test_the_loss_is_the_mean_squared_error(config):
    loss = config.training.loss
    assert (loss.kind, loss.reduction, loss.gradient_weight, loss.scaled) == ("mse", "mean", 0, False)


def test_the_models_have_the_published_sizes(config):
    model = config.model
    assert (model.name, model.width, model.heads, model.mlp_ratio) == ("cross-linearno", 96, 8, 3)
    assert (model.depth, model.slices) == DEPTH_AND_SLICES[config.recipe.split("/")[1]]


def test_the_rate_rises_from_a_ten_thousandth_as_in_pytorchs_schedule():
    training, model = RECIPES["burgers20/linearno"]().training, torch.nn.Linear(2, 1)
    optimizer, published = make_optimizer(model, training), torch.optim.Adam(model.parameters(), lr=1e-3)
    ours = Schedule(optimizer, training, steps_per_epoch=2)
    theirs = OneCycleLR(published, max_lr=1e-3, div_factor=1e4, epochs=500, steps_per_epoch=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-7)
    for _ in range(999):
        optimizer.step(), ours.after_step()
        published.step(), theirs.step()
        assert optimizer.param_groups[0]["lr"] == published.param_groups[0]["lr"]
