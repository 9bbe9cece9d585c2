"""Models with linear attention, filled with published weights, give the published outputs and gradients."""

import json
from pathlib import Path

import pytest
import torch

from linearno import from_published
from linearno.core.errors import UserError
from linearno.models.oformer import EncoderBlock
from linearno.nn.protocol import spec_of
from tests.models.published_case import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "published" / "linear"
SHAPES = json.loads((FOLDER / "state_dicts.json").read_text())
HINTS = {  # what shapes do not tell, by the end of a name
    "ns/Galerkin_Transformer": {"unified_pos": 8, "grid": (64, 64), "coords": 2},
    "darcy/Galerkin_Transformer": {"unified_pos": 8, "grid": (85, 85), "coords": 2},
    "pipe/Galerkin_Transformer": {"append": "coords", "coords": 2},
    "pipe/GNOT": {"append": "coords"},
    "darcy/Factformer": {"unified_pos": 8, "grid": (85, 85), "coords": 2},
    "airfoil/Factformer": {"grid": (221, 51), "coords": 2},
    "plasticity/Factformer": {"append": "coords", "grid": (129, 129), "coords": 2},  # the script trains Pipe
    "pipe/ONO": {"append": "coords", "coords": 2},
    "GNOT": {},
    "completer/GNOT_d96_b4_e2": {},
}


def published(*models):
    return [name for name in SHAPES if name.split("/")[-1] in models]


def call(model, given):
    return model(given["x"], given["fx"])


def test_galerkin_transformer():
    Case(FOLDER / "nsl_galerkin.npz").check_published(call, heads=4, coords=2)


def test_gnot():
    Case(FOLDER / "nsl_gnot.npz").check_published(call, heads=4)


def test_factformer():
    Case(FOLDER / "nsl_factformer.npz").check_published(call, grid=(9, 8))


def test_ono_in_training():
    """The published gradients flow through the covariance of the batch."""
    case = Case(FOLDER / "nsl_ono.npz")

    def parameters(weights):
        return dict(from_published(weights, heads=4, coords=2).named_parameters())

    case.check(from_published(case.weights, heads=4, coords=2).train(), call, parameters)


def test_ono_in_evaluation_has_the_published_running_covariance():
    """The stored one is that of the stored batch, which came first: evaluation gives what training gave."""
    case = Case(FOLDER / "nsl_ono.npz")
    model = from_published(case.weights, heads=4, coords=2).eval()
    for block, covariance in zip(
        model.blocks, (case.weights[f"blocks.{i}.feature_cov"] for i in range(2)), strict=True
    ):
        assert torch.equal(block.whitening.covariance, covariance)
    torch.testing.assert_close(call(model, case.inputs), case.out, rtol=0, atol=2e-5 * case.out.abs().max())


def test_oformer():
    case = Case(FOLDER / "oformer_darcy.npz")
    given = case.inputs.pop("x")
    case.inputs["fx"] = given[..., :1]
    assert torch.equal(given[..., 1:], case.inputs["pos"])
    joined = case.input_grads.pop("x")
    case.input_grads["fx"] = joined[..., :1]
    case.input_grads["pos"] += joined[..., 1:]  # published as two inputs

    def query(model, inputs):
        return model.query(inputs["query"], model.encode(inputs["pos"], inputs["fx"]))

    case.check_published(query, resolution=8)


def test_a_layer_of_the_encoder_of_oformer():
    case = Case(FOLDER / "oformer_encoder_layer.npz", dropped="inv_freq")
    names = {
        "layers.0.0": "norm_attention",
        "layers.0.2": "norm_mlp",
        "layers.0.1.to_out.0": "attention.merge",
    }
    names |= {"layers.0.3.net.0": "mlp.inner", "layers.0.3.net.3": "mlp.outer"}

    def rename(weights):
        found = {
            names[name.rpartition(".")[0]] + f".{name.rpartition('.')[2]}": part
            for name, part in weights.items()
            if "to_qkv" not in name
        }
        joint = weights["layers.0.1.to_qkv.weight"].chunk(3)
        parts = zip(("query", "key", "value"), joint, strict=True)
        return found | {f"attention.{part}.weight": own for part, own in parts}

    block = EncoderBlock(24, 3, coords=2, scale=2.0 * 8)
    block.load_state_dict(rename(case.weights))
    case.check(block, lambda block, given: block(given["x"], None, given["pos"]), rename)


@pytest.mark.parametrize(("name", "heads"), [("darcy", 4), ("ns", 1)])
def test_an_oformer_is_rebuilt_with_its_exact_parameter_count(name, heads):
    parts = {part: SHAPES[f"OFormer/{name}/{part}"] for part in ("encoder", "decoder")}
    weights = {
        f"{part}.{key}": torch.zeros(shape)
        for part, found in parts.items()
        for key, shape in found["state_dict"].items()
    }
    model = from_published(weights, heads=heads, latent=192 if name == "ns" else 256)
    count = sum(weight.numel() for weight in model.parameters())
    assert count == sum(found["params"] for found in parts.values())


@pytest.mark.parametrize(
    "name", published("Galerkin_Transformer", "GNOT", "GNOT_d96_b4_e2", "Factformer", "ONO")
)
def test_a_published_model_is_rebuilt_with_its_exact_parameter_count(name):
    weights = {key: torch.zeros(shape) for key, shape in SHAPES[name]["state_dict"].items()}
    hints = next((HINTS[end] for end in HINTS if name.endswith(end)), {"coords": 2})
    model = from_published(weights, **hints)
    assert sum(weight.numel() for weight in model.parameters()) == SHAPES[name]["params"]
    assert spec_of(model).sizes["coords"] == (3 if "/car/" in name else 2)


def test_hints_that_contradict_the_shapes_are_refused():
    weights = Case(FOLDER / "nsl_galerkin.npz").weights
    with pytest.raises(UserError, match="width=32 is not a multiple of heads=5"):
        from_published(weights, heads=5)
    with pytest.raises(UserError, match="depth=3 was given, but the weights have 2 depth"):
        from_published(weights, depth=3)
