"""Recipes of models with linear or factorised attention build the models whose sizes are published."""

import json
import re
from pathlib import Path

import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.models import build_model
from linearno.recipes import RECIPES

FOLDER = Path(__file__).parents[1] / "fixtures" / "published" / "linear"
SHAPES = json.loads((FOLDER / "state_dicts.json").read_text())
RECIPE = {  # of the library's models
    "Galerkin_Transformer": "galerkin",
    "GNOT": "gnot",
    "Factformer": "factformer",
    "ONO": "ono",
}
BENCHMARKS = ("airfoil", "pipe", "plasticity", "ns", "darcy", "elasticity")
NO_GRID = {"elasticity/factformer"}
NAMES = [f"{benchmark}/{model}" for benchmark in BENCHMARKS for model in (*RECIPE.values(), "oformer")]
NAMES = [name for name in NAMES if name not in NO_GRID]
TRAINS = {"NSL/plasticity/Factformer": "pipe"}  # the library's script for plasticity trains this
PUBLISHED = {
    f"{TRAINS.get(name, name.split('/')[1])}/{RECIPE[model]}": SHAPES[name]["params"]
    for model in RECIPE
    for name in SHAPES
    if name.endswith(f"/{model}") and "/car/" not in name
} | {
    f"{name}/oformer": sum(SHAPES[f"OFormer/{name}/{part}"]["params"] for part in ("encoder", "decoder"))
    for name in ("darcy", "ns")
}


def build(recipe):
    config = RECIPES[recipe]()
    config.require_task_fits_model()
    with torch.device("meta"):
        return build_model(
            config.model, config.task.spec(DATASETS[config.data.name].layout(config.data).spec)
        )


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_recipe_has_the_published_number_of_parameters(recipe):
    assert sum(weight.numel() for weight in build(recipe).parameters()) == PUBLISHED[recipe]


def test_gnot_completes_burgers_fields_with_the_sizes_whose_weights_are_known():
    count = sum(weight.numel() for weight in build("burgers20/cross-gnot").parameters())
    assert count == SHAPES["completer/GNOT_d96_b4_e2"]["params"]
    training = RECIPES["burgers5/cross-gnot"]().training
    assert (training.schedule, training.decay, training.decay_epochs) == ("step", 0.7, 50)


def test_oformer_predicts_all_frames_of_navier_stokes_in_one_call():
    config = RECIPES["ns/oformer"]()
    assert (config.task.name, config.model.march) == ("direct", config.data.frames_out)
    assert RECIPES["ns/galerkin"]().task.name == "rollout"


@pytest.mark.parametrize("recipe", sorted(NO_GRID))
def test_a_benchmark_without_a_grid_is_refused(recipe):
    with pytest.raises(UserError, match="needs data on a grid, these have none"):
        build(recipe)


@pytest.mark.parametrize("recipe", NAMES)
def test_a_recipe_builds_its_model_and_says_whose_settings_it_has(recipe):
    build(recipe)
    benchmark, name = recipe.split("/")
    assert name in RECIPES[recipe]().benchmark.models
    assert re.search("Library|published|our settings", RECIPES[recipe].__doc__)
    assert benchmark in BENCHMARKS
