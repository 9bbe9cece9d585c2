"""Recipes of ShapeNet-Car: settings, and a run of each model on small bodies."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.config import override
from linearno.data import DATASETS
from linearno.data.benchmark import Splits
from linearno.data.shapenet_car import _field_data, _loss_scale, shapenet_car_layout
from linearno.data.shapenet_car_points import car_rows
from linearno.experiment import run
from linearno.recipes import recipe
from linearno.run_config import RECIPES
from tests.data.toy_cars import toy_car

SMALL = {
    "linearno": ["model.width=16", "model.slices=4", "model.heads=2"],
    "transolver": ["model.width=16", "model.slices=4", "model.heads=2"],
    "transolver++": ["model.width=16", "model.slices=4", "model.heads=2"],
    "lno": ["model.width=16", "model.slices=4", "model.heads=2"],
    "lrsa": ["model.width=16", "model.slices=4", "model.heads=2"],
    "gnot": ["model.width=16", "model.heads=2"],
    "galerkin": ["model.width=16", "model.heads=2"],
    "mlp": [],
    "graphsage": ["model.width=8"],
    "pointnet": ["model.width=4"],
    "graphunet": ["model.width=4", "model.depth=2"],
    "meshgraphnet": ["model.width=8"],
    "gno": ["model.width=4", "model.kernel_width=8"],
    "gino": ["model.width=4", "model.modes=2", "model.latent=[4,4,4]"],
}
SHALLOW = {"lno", "mlp", "graphunet", "pointnet"}


@pytest.fixture
def small_bodies(monkeypatch):
    """The benchmark with two ellipsoids to train on and two to test."""
    rng = np.random.default_rng(0)
    cars = [car_rows(toy_car(rng, n=2, nodes=60)) for _ in range(4)]
    benchmark = DATASETS["shapenet-car"]

    def open_small(config):
        spec, scale = shapenet_car_layout(config).spec, _loss_scale(cars[:2], config.statistics)
        parts = [_field_data(spec, part, scale, config.statistics) for part in (cars[:2], cars[2:])]
        return Splits(*parts, "ellipsoids")

    monkeypatch.setitem(DATASETS._entries, "shapenet-car", replace(benchmark, open=open_small))


@pytest.mark.usefixtures("small_bodies")
@pytest.mark.parametrize("model", SMALL)
def test_every_model_trains_on_cars_and_is_judged_by_their_drag(model, tmp_path):
    changes = ["training.epochs=1", *SMALL[model], *([] if model in SHALLOW else ["model.depth=1"])]
    config = override(recipe("shapenet-car", model), changes)
    results = run(config, tmp_path / "run", torch.device("cpu"))
    for name in ("surface", "volume", "drag_error", "drag_error_shifted"):
        assert np.isfinite(results[name]["mean"]), results
    assert -1 <= results["summaries"]["drag_spearman"] <= 1
    assert results["metric"] == "surface"


@pytest.mark.usefixtures("small_bodies")
def test_the_protocol_with_separate_statistics_trains(tmp_path):
    config = override(recipe("shapenet-car-separate", "linearno"), ["training.epochs=1", *SMALL["linearno"]])
    assert config.data.statistics == "separate"
    results = run(config, tmp_path / "run", torch.device("cpu"))
    assert np.isfinite(results["surface"]["mean"])
    assert np.isfinite(results["volume"]["mean"])


def test_the_recipes_have_the_published_settings():
    config = recipe("shapenet-car", "linearno")
    assert (config.training.epochs, config.training.batch, config.training.optimizer) == (200, 1, "adam")
    assert config.data.sizes == {"train": 789, "test": 100}
    assert (config.model.width, config.model.slices, config.model.depth) == (256, 32, 8)
    assert {f"shapenet-car/{model}" for model in SMALL} <= set(RECIPES)
