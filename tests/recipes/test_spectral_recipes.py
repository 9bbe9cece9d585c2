"""Recipes of Fourier operators and LSM build the models whose sizes are published."""

import json
import re
from math import prod
from pathlib import Path

import pytest
import torch

from linearno import from_published
from linearno.data import DATASETS
from linearno.import_weights import import_weights
from linearno.models import MODELS, build_model
from linearno.nn.spectral import FactorisedSpectralConv, ModeMixing
from linearno.recipes import RECIPES

FOLDER = Path(__file__).parents[1] / "fixtures" / "published"
SHAPES = json.loads((FOLDER / "state_dicts_spectral.json").read_text())
RECIPE = {"FNO": "fno", "U_FNO": "u-fno", "F_FNO": "f-fno-nsl", "LSM": "lsm"}  # of the library's models
GRIDS = {"airfoil": (221, 51), "pipe": (129, 129), "plasticity": (101, 31), "ns": (64, 64), "darcy": (85, 85)}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def build(recipe):
    config = RECIPES[recipe]()
    spec = DATASETS[config.data.name].layout(config.data).spec
    with torch.device("meta"):
        return build_model(config.model, config.task.spec(spec))


def real_numbers(model):
    return sum(weight.numel() for weight in model.parameters())


def count(model):
    """Parameters as the library counts them: complex ones as one, but those of F-FNO as two."""
    lines = [each.mixings for each in model.modules() if isinstance(each, FactorisedSpectralConv)]
    factorised = {mixing for mixings in lines for mixing in mixings}
    mixings = {each for each in model.modules() if isinstance(each, ModeMixing)} - factorised
    return real_numbers(model) - sum(mixing.weight.numel() // 2 for mixing in mixings)


def published_weights(name):
    """Weights of the published names and shapes, without numbers; complex where they are."""
    weights = {}
    for key, shape in SHAPES[name]["state_dict"].items():
        complex_valued = "complex64" in shape
        size = [n for n in shape if n != "complex64"]
        weights[key] = torch.zeros(size, dtype=torch.complex64 if complex_valued else None, device="meta")
    return weights


def split(weights, unused):
    """How many parameters the published model reads, and how many others it has."""
    parts = {key: prod(t.shape) for key, t in weights.items() if not key.endswith(STATISTICS)}
    dead = sum(n for key, n in parts.items() if re.search(unused, key))
    return sum(parts.values()) - dead, dead


@pytest.mark.parametrize("name", SHAPES)
def test_the_library_s_models_have_the_published_number_of_parameters(name):
    _, benchmark, model = name.split("/")
    recipe, weights = f"{benchmark}/{RECIPE[model]}", published_weights(name)
    built = build(recipe)
    (format,) = MODELS[RECIPES[recipe]().model.name].published
    used, unused = split(weights, format.unused)
    assert used + unused == SHAPES[name]["params"]
    assert count(built) == used


@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name]["params"] < 7e6])
def test_the_library_s_weights_are_those_of_the_recipe(name):
    _, benchmark, model = name.split("/")
    config = RECIPES[f"{benchmark}/{RECIPE[model]}"]().model
    weights = {key: torch.zeros_like(t, device="cpu") for key, t in published_weights(name).items()}
    hints = {"coords": 2, "grid": GRIDS.get(benchmark)}
    hints |= {key: getattr(config, key) for key in ("append", "latent")}
    hints["unified_pos"] = None if config.unified is None else config.unified.ref
    read = from_published(weights, **hints)
    assert count(read) == SHAPES[name]["params"]
    built = build(f"{benchmark}/{RECIPE[model]}").state_dict()
    found = {key: t for key, t in read.state_dict().items() if not key.startswith("unused.")}
    assert {key: t.shape for key, t in found.items()} == {key: t.shape for key, t in built.items()}


@pytest.mark.parametrize("recipe", ["airfoil/fno", "ns/f-fno-nsl", "airfoil/lsm"])
def test_the_library_s_weights_are_imported_into_the_recipe(recipe, tmp_path):
    benchmark, model = recipe.removesuffix("-nsl").split("/")
    name = f"NSL/{benchmark}/{model.upper().replace('-', '_')}"
    weights = {key: torch.randn_like(t, device="cpu") for key, t in published_weights(name).items()}
    torch.save(weights, tmp_path / "weights.pt")
    bundle = import_weights(tmp_path / "weights.pt", RECIPES[recipe](), tmp_path / "run", with_data=False)
    first = weights["preprocess.linear_pre.0.weight"]
    assert torch.equal(bundle.model.lift[0].weight, first)


AUTHORS = {  # recipe, and what its authors' code counts: complex weights as one, and as two real numbers
    "airfoil/geo-fno": (2_368_033, 4_727_329),
    "pipe/geo-fno": (1_188_385, 2_368_033),
    "airfoil/f-fno": (10_247_938, 10_247_938),
}


@pytest.mark.parametrize("recipe", AUTHORS)
def test_the_authors_models_have_the_published_number_of_parameters(recipe):
    model = build(recipe)
    assert (count(model), real_numbers(model)) == AUTHORS[recipe]


def test_geo_fno_on_scattered_points_has_the_published_number_of_parameters():
    code = MODELS["geo-fno"].cls(coords=2, outputs=1, grid=None, code=42)
    without_code = 96 * 128 + 128  # of the deformation: its authors' one has both layers
    assert count(code) + without_code == 1_482_657 + 63_746
    assert count(build("elasticity/geo-fno")) + 42 * 32 + 32 == 1_482_657 + 63_746


def test_every_recipe_says_whose_settings_it_has():
    for benchmark in ("airfoil", "pipe", "plasticity", "ns", "darcy", "elasticity"):
        for model in ("fno", "u-fno", "geo-fno", "f-fno", "f-fno-nsl", "lsm"):
            assert re.search("Library|published|our settings", RECIPES[f"{benchmark}/{model}"].__doc__)
