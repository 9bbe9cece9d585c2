"""Models with learned slices, filled with published weights, give the published outputs and gradients."""

import json
import re
from pathlib import Path

import pytest
import torch

from linearno import from_published
from linearno.core.errors import UserError
from linearno.models import flare_plus, lrsa, transolver_plus
from linearno.models.flare import FLARE
from linearno.models.lrsa import LRSA, LrsaBlock, hidden_width, log_mass
from linearno.models.transolver_plus import TransolverPlus
from linearno.nn.latent_attention import gather_by_scores, scatter_by_scores
from linearno.nn.protocol import spec_of
from tests.models.published_case import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "published" / "latent"
SHAPES = json.loads((FOLDER / "state_dicts.json").read_text())
ATTENTION_BIAS = r"\.(sm_)?to_[qkv](_2)?\.bias$"  # zero in one fixture, for a block without them


def renamed_block(format, weights):
    """Weights of one block under our names."""
    weights = {f"blocks.0.{name}": value for name, value in weights.items()}
    for pattern, replacement in format.names:
        weights = {re.sub(pattern, replacement, name): value for name, value in weights.items()}
    return {name.removeprefix("blocks.0."): value for name, value in format.convert(weights).items()}


def test_transolver_plus_with_the_published_noise(monkeypatch):
    case = Case(FOLDER / "transolver_plus.npz")
    model = from_published(case.weights)
    assert spec_of(model).config.model_dump(exclude_defaults=True) == {
        **{
            "width": 32,
            "depth": 2,
            "heads": 4,
            "slices": 8,
            "mlp_ratio": 2,
            "condition": 3,
            "noise": "always",
        }
    }
    draws = iter([case.extra["gumbel_u_block0"], case.extra["gumbel_u_block1"]])
    monkeypatch.setattr(transolver_plus, "draw_uniform", lambda scores: next(draws))
    case.check(
        model.train(),
        lambda model, given: model(given["x"], condition=given["cond"]),
        lambda weights: dict(from_published(weights).named_parameters()),
    )


def test_lno():
    """Trunk and branch have inputs that are independent of each other."""

    def call(model, given):
        x, y = model.scores.features(model.trunk(given["x"])), model.branch(given["y"])
        slices = model.blocks(gather_by_scores(model.scores.output, x, y))
        return model.head(scatter_by_scores(model.scores.output, x, slices))

    Case(FOLDER / "lno_forward.npz").check_published(call, heads=4)


def test_the_forward_pass_of_lno_gives_the_coordinates_to_the_branch_too():
    case = Case(FOLDER / "lno_forward.npz")
    model = from_published(case.weights, heads=4)
    x, a = case.inputs["x"], case.inputs["y"][..., :1]
    features, y = model.scores.features(model.trunk(x)), model.branch(torch.cat([x, a], dim=-1))
    slices = model.blocks(gather_by_scores(model.scores.output, features, y))
    expected = model.head(scatter_by_scores(model.scores.output, features, slices))
    torch.testing.assert_close(model(x, a), expected)


def test_deeponet():
    def call(model, given):
        return model(given["obs"][..., :2], given["obs"][..., 2:], points=given["query"])

    Case(FOLDER / "deeponet_completer.npz").check_published(call)


@pytest.mark.parametrize(("name", "heads"), [("flare_pde", 4), ("flare_pde_in3", 3)])
def test_flare(name, heads):
    Case(FOLDER / f"{name}.npz").check_published(lambda model, given: model(given["x"]), heads=heads)


def test_the_mixer_of_flare_plus_plus():
    case = Case(FOLDER / "flarepp_mixer.npz")

    def rename(weights):
        names = {"q_seed": "seeds", "in_projection": "project", "out_linear": "merge"}
        ours = {
            re.sub("^[a-z_]+", lambda found: names[found[0]], key): value for key, value in weights.items()
        }
        return ours | {"seeds": ours["seeds"][0]}

    mixer = flare_plus.FlarePlusMixer(width=32, heads=4, slices=10)
    mixer.load_state_dict(rename(case.weights))
    case.check(mixer, lambda mixer, given: mixer(given["x"]), rename)


@pytest.mark.parametrize(
    ("name", "dropped", "settings"),
    [
        ("lrsa_block", rf"up_proj|{ATTENTION_BIAS}", {"hidden": 32, "bias": "output"}),
        ("lrsa_block_bias", "up_proj", {"hidden": 48, "bias": "all"}),
        ("lrsa_block_gated_mass", "(?!)", {"hidden": 64, "bias": "none", "gated": True}),
    ],
)
def test_a_block_of_lrsa(name, dropped, settings):
    case = Case(FOLDER / f"{name}.npz", dropped)
    config = case.config
    block = LrsaBlock(config["d_model"], config["num_heads"], config["modes"], **settings)
    assert settings["hidden"] == hidden_width(
        config["d_model"], float(config["ffn"]["mlp_ratio"]), settings.get("gated", False)
    )

    def rename(weights):
        return renamed_block(lrsa.PUBLISHED, weights)

    def call(block, given):
        return block(given["fx"], None, log_mass(given["mass"]) if "mass" in given else None)

    block.load_state_dict(rename(case.weights))
    case.check(block, call, rename)


def test_lrsa():
    case = Case(FOLDER / "lrsa_model_neo.npz", r"(ffn|channel_mixing_\d)\.up_proj")
    case.check_published(lambda model, given: model(given["x"], given["fx"]))
    config = spec_of(from_published(case.weights)).config
    assert config.fourier.model_dump() == pytest.approx({"count": 4, "low": -2, "high": 2, "raw": False})


@pytest.mark.parametrize("name", SHAPES)
def test_every_published_model_is_rebuilt_with_its_exact_parameter_count(name):
    weights = {key: torch.zeros(shape) for key, shape in SHAPES[name]["state_dict"].items()}
    hints = {
        "LNO/airfoil": {"trunk": "grid", "grid": (221, 51), "coords": 2},
        "LNO/pipe": {"trunk": "grid", "grid": (129, 129), "coords": 2},
        "LNO/plasticity": {"time": True},
    }
    model = from_published(weights, **hints.get(name, {}))
    assert sum(weight.numel() for weight in model.parameters()) == SHAPES[name]["params"]
    expected = {
        "LNO/plasticity": (2, 1),
        "LNO/ns": (2, 10),
        "LNO/elasticity": (2, 0),
        "completer/LNO": (2, 1),
    }
    if name in expected:
        sizes = spec_of(model).sizes
        assert (sizes["coords"], sizes["inputs"]) == expected[name]


@pytest.mark.parametrize(
    ("cls", "settings", "count"),
    [
        (TransolverPlus, {"coords": 2}, 590_793),
        (FLARE, {"coords": 2}, 592_641),
        (FLARE, {"coords": 2, "inputs": 1, "heads": 16, "slices": 256}, 691_009),
        (FLARE, {"coords": 2, "slices": 256}, 690_945),
        (FLARE, {"coords": 2, "slices": 128}, 625_409),
        (LRSA, {"coords": 3, "inputs": 3, "outputs": 4, "width": 256, "mlp_ratio": 1}, 9_105_156),
        (LRSA, {"coords": 3, "inputs": 3, "outputs": 4, "width": 232, "mlp_ratio": 1}, 7_494_300),
    ],
)
def test_parameter_counts_are_the_published_ones(cls, settings, count):
    model = cls(**{"outputs": 1} | settings)
    assert sum(weight.numel() for weight in model.parameters()) == count


def test_hints_that_contradict_the_shapes_are_refused():
    with pytest.raises(UserError, match="coords=3 was given, but the trunk takes 2"):
        from_published(Case(FOLDER / "lno_forward.npz").weights, coords=3)
    with pytest.raises(UserError, match="slices=9 was given, but the weights have 8 slices"):
        from_published(Case(FOLDER / "lno_forward.npz").weights, slices=9)
    with pytest.raises(UserError, match="width=32 is not a multiple of heads=5"):
        from_published(Case(FOLDER / "flare_pde.npz").weights, heads=5)
