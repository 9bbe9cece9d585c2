"""Navier–Stokes is trained as published."""

import pytest

from linearno.recipes import RECIPES


@pytest.fixture(params=["linearno", "transolver"])
def config(request):
    return RECIPES[f"ns/{request.param}"]()


def test_the_recipes_are_the_published_settings(config):
    training = config.training
    assert (training.epochs, training.batch, training.accumulate) == (500, 2, 1)
    assert (training.optimizer, training.lr, training.betas) == ("adamw", 1e-3, (0.9, 0.999))
    assert training.weight_decay == {"linearno": 1e-6, "transolver": 1e-5}[config.model.name]
    assert training.clip is None
    assert (training.schedule, training.schedule_every, training.start_factor) == ("onecycle", "step", 25)
    assert (training.validation, training.ema) == (0, None)  # the last epoch is the result


def test_ten_frames_follow_from_ten_each_step_from_true_ones(config):
    data, task = config.data, config.task
    assert (data.train, data.test, data.stride) == (1000, 200, 1)
    assert (data.frames_in, data.frames_out) == (10, 10)
    assert (task.name, task.forcing, task.channels) == ("rollout", "teacher", 1)


def test_the_loss_is_the_sum_of_the_relative_errors_of_all_steps_and_samples(config):
    loss = config.training.loss
    assert (loss.kind, loss.reduction, loss.gradient_weight, loss.scaled) == ("relative_l2", "sum", 0, False)


def test_the_models_have_the_published_sizes(config):
    model = config.model
    assert (model.width, model.depth, model.heads, model.slices) == (256, 8, 8, 32)
    assert (model.time, model.unified.place, model.unified.box) == (False, "grid", None)
    published = {"linearno": ("linear", 2, 10), "transolver": ("conv", 1, 8)}
    assert (model.stem, model.mlp_ratio, model.unified.ref) == published[model.name]


def test_linearno_is_the_plain_variant():
    """No temperatures, one layer to merge the heads, and nothing of the ablations."""
    model = RECIPES["ns/linearno"]().model
    assert (model.temperature, model.merge_layers) == (None, 1)
    assert (model.tied, model.mix, model.phi, model.psi) == (False, "identity", "M", "N")
