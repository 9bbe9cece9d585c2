"""Recipes of models with learned slices: published sizes and training, on every benchmark."""

import pytest
import torch

from linearno.core.config import override
from linearno.data import DATASETS
from linearno.experiment import run
from linearno.models import build_model
from linearno.recipes import RECIPES, recipe

PARAMETERS = {  # published; others follow from sizes that are our settings
    "airfoil/lno": 1_292_161,
    "pipe/lno": 1_292_161,
    "plasticity/lno": 762_756,
    "ns/lno": 5_076_481,
    "darcy/lno": 762_113,
    "elasticity/lno": 1_831_745,
    "elasticity/flare": 592_641,
    "darcy/flare": 691_009,
    "airfoil/flare": 690_945,
    "pipe/flare": 625_409,
    "burgers20/cross-lno": 464_609,
    "burgers20/deeponet": 330_049,
}
BENCHMARKS = ["darcy", "elasticity", "airfoil", "pipe", "ns", "plasticity"]
NAMES = [
    f"{each}/{name}" for each in BENCHMARKS for name in ("transolver++", "lno", "lrsa", "flare", "flare++")
]


@pytest.mark.parametrize("name", [*NAMES, "burgers5/cross-lno", "burgers5/deeponet"])
def test_a_recipe_builds_its_model_for_the_published_data(name):
    config = RECIPES[name]()
    config.require_task_fits_model()
    assert name.partition("/")[2] in config.benchmark.models
    with torch.device("meta"):
        build_model(config.model, config.task.spec(DATASETS[config.data.name].layout(config.data).spec))


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_a_recipe_has_the_published_number_of_parameters(name, count):
    config = RECIPES[name]()
    spec = config.task.spec(DATASETS[config.data.name].layout(config.data).spec)
    assert sum(weight.numel() for weight in build_model(config.model, spec).parameters()) == count


def test_flare_and_lno_are_trained_as_published_on_every_benchmark():
    for benchmark in BENCHMARKS:
        flare, lno = (recipe(benchmark, name).training for name in ("flare", "lno"))
        assert (flare.batch, flare.ema, flare.warmup, flare.start_factor) == (2, 0.999, 0.1, 1e4)
        assert (flare.weight_decay, flare.clip, flare.precision) == (1e-5, 1.0, "fp32")
        assert (lno.batch, lno.betas, lno.warmup, lno.start_factor) == (4, (0.9, 0.99), 0.2, 1e4)
        assert (lno.weight_decay, lno.clip) == (5e-5, 1000)
        assert {each.schedule for each in (flare, lno)} == {"onecycle"}
        assert {each.schedule_every for each in (flare, lno)} == {"step"}


@pytest.mark.parametrize("name", ["lrsa", "flare"])
def test_a_tiny_darcy_run_trains_with_convolutions_and_averaged_weights(name, darcy_folder, tmp_path):
    tiny = ["data.train=4", "data.test=2", "data.stride=8", "training.epochs=2", f"data.root={darcy_folder}"]
    sizes = ["model.width=8", "model.depth=1", "model.heads=2", "model.slices=4"]
    metrics = run(override(recipe("darcy", name), tiny + sizes), tmp_path / "run", torch.device("cpu"))
    assert 0 < metrics["relative_l2"]["mean"] < 10
