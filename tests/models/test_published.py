"""Our models, filled with published weights, give the published outputs and gradients."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno import from_published
from linearno.core.errors import UserError
from linearno.models import MODELS, PublishedFormat, infer_config, model

FOLDER = Path(__file__).parents[1] / "fixtures" / "published"
CASES = sorted(path.stem for path in FOLDER.glob("*.npz"))
SHAPES = json.loads((FOLDER / "state_dicts.json").read_text())
GRIDS = {"airfoil": (221, 51), "pipe": (129, 129), "plasticity": (101, 31), "ns": (64, 64), "darcy": (85, 85)}


class Case:
    """A fixture: weights, inputs, output and gradients of one published module."""

    def __init__(self, name):
        with np.load(FOLDER / f"{name}.npz") as file:
            arrays = {key: file[key] for key in file.files}
        config = json.loads(str(arrays.pop("config")))
        weights = {key: value for key, value in arrays.items() if value.ndim or key.startswith("sd/")}
        tensors = {key: torch.from_numpy(value) for key, value in weights.items()}
        counters = [key for key in tensors if key.endswith("num_batches_tracked")]
        tensors |= {key: tensors[key].reshape(()).long() for key in counters}
        self.out = tensors["out"]
        self.weights, self.inputs, self.grads, self.input_grads = (
            {key.removeprefix(part): t for key, t in tensors.items() if key.startswith(part)}
            for part in ("sd/", "in/", "grad/", "gin/")
        )
        self.options = hints_of(config)

    def run(self):
        model = from_published(self.weights, **self.options).eval()
        inputs = {key: t.clone().requires_grad_() for key, t in self.inputs.items()}
        if "query" in inputs:  # the completer takes observations as coordinates and value in one tensor
            seen = inputs["obs"]
            return model, inputs, model(seen[..., :2], seen[..., 2:], points=inputs["query"])
        names = {"T": "time", "pos": "positions", "code": "code"}
        given = {name: inputs[key] for key, name in names.items() if key in inputs}
        x, fx = inputs["x"], inputs.get("fx")
        if x.dim() == 2:  # the published car and AirfRANS models take one mesh without a batch
            x, fx, given = x[None], None if fx is None else fx[None], {k: t[None] for k, t in given.items()}
        out = model(x.flatten(1, -2), fx, **given)
        return model, inputs, out.view(self.out.shape)


def hints_of(config):
    """What the shapes of a fixture's weights do not determine."""
    if "n_head" in config:
        hints = {"heads": config["n_head"]}
        if "H" in config:
            hints["grid"] = tuple(config[axis] for axis in "HWD" if axis in config)
        if config.get("unified_pos"):
            hints["unified_pos"] = config.get("ref", 8)
        return hints
    if "iphi_width" in config:
        return {"latent": config["s1"]}
    hints = {"coords": config.get("space_dim", 2)}
    if config.get("geotype") == "unstructured":
        return hints | {"latent": 96}
    return hints | {"grid": tuple(config.get("shapelist") or config["shape"])}


def numbers(tensors):
    """How many real numbers tensors have."""
    return sum(t.numel() * (2 if t.is_complex() else 1) for t in tensors)


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients_are_the_published_ones(name):
    case = Case(name)
    model, inputs, out = case.run()
    assert (out - case.out).abs().max() <= 2e-5 * case.out.abs().max()
    out.square().mean().backward()
    ceiling = max(grad.abs().max() for grad in case.grads.values())
    # the published gradients take our names on the same way as the weights do; absent ones become NaN
    blank = {
        key: torch.full_like(t, torch.nan) if t.is_floating_point() or t.is_complex() else t
        for key, t in case.weights.items()
    }
    expected = from_published(blank | case.grads, **case.options)
    compared = []
    for (key, weight), (_, grad) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        if grad.isnan().any():
            continue
        compared.append(grad)
        assert weight.grad is not None, key
        tolerance = 1e-3 * max(grad.abs().max(), 1e-4 * ceiling)
        assert (weight.grad - grad).abs().max() <= tolerance, key
    assert numbers(compared) == numbers(case.grads.values())
    for key, grad in case.input_grads.items():
        assert (inputs[key].grad - grad).abs().max() <= 1e-3 * grad.abs().max(), key


@pytest.mark.parametrize("name", SHAPES)
def test_every_published_model_is_rebuilt_with_its_exact_parameter_count(name):
    weights = {key: torch.zeros(shape) for key, shape in SHAPES[name]["state_dict"].items()}
    family, benchmark = name.split("/")
    unified = {"Transolver/ns": 8, "Transolver/darcy": 8, "LinearNO/ns": 10}
    unified |= {"LinearNO/AirfRANS": 8, "Transolver/AirfRANS": 8}
    model = from_published(weights, heads=8, grid=GRIDS.get(benchmark), unified_pos=unified.get(name))
    assert type(model).__name__ == family
    assert sum(weight.numel() for weight in model.parameters()) == SHAPES[name]["params"]


def test_weights_are_read_from_a_file_without_running_anything(tmp_path):
    case = Case("linearno_plain")
    torch.save(case.weights, tmp_path / "weights.pt")
    model = from_published(tmp_path / "weights.pt", heads=4)
    assert torch.equal(model.placeholder, case.weights["placeholder"])


def test_a_file_that_would_run_code_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")  # a whole pickled module
    with pytest.raises(UserError, match=r"model\.pt asks for .*Linear.*, which is no part of plain weights"):
        from_published(tmp_path / "model.pt", heads=4)


def test_hints_are_required_for_what_shapes_do_not_determine():
    conv = Case("linearno_conv")
    with pytest.raises(UserError, match=r"needs grid=\(rows, columns\)"):
        from_published(conv.weights, heads=4)
    with pytest.raises(UserError, match=r"give its mesh as grid=\(rows, columns\)"):
        from_published(conv.weights, heads=4, grid=(6, 5, 4))
    unified = Case("linearno_plain_unifiedpos")
    with pytest.raises(UserError, match=r"needs grid=\(rows, columns\)"):
        from_published(unified.weights, heads=4, unified_pos=4)


def test_what_contradicts_the_shapes_is_refused():
    plain = Case("linearno_plain")
    with pytest.raises(UserError, match="heads=8 was given, but the weights have 4 heads"):
        from_published(plain.weights, heads=8)
    cross = Case("linearno_cross_completer")
    with pytest.raises(
        UserError, match="unified_pos: published weights of 'cross-linearno' take no such hint"
    ):
        from_published(cross.weights, heads=4, unified_pos=8)
    with pytest.raises(UserError, match="not weights of a published model"):
        from_published({"layer.weight": torch.zeros(2, 2)}, heads=4)
    without = {k: v for k, v in plain.weights.items() if k != "blocks.1.ln_2.bias"}
    with pytest.raises(UserError, match=r"blocks\.1\.norm_mlp\.bias"):
        from_published(without, heads=4)


def infer_split(weights, hints):
    """Sizes of `SplitNet`, whose published form stores its matrix as two halves."""
    if "first" not in weights:
        return None
    coords = hints.get("coords", weights["first"].shape[1])
    return {
        "coords": coords,
        "inputs": weights["first"].shape[1] - coords,
        "outputs": 2 * len(weights["second"]),
    }


@pytest.fixture
def registry(monkeypatch):
    """Models registered by a test are removed after it."""
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))


def register_split(name):
    @model(
        name,
        published=[
            PublishedFormat(
                infer_split,
                names=[("^first$", "a"), ("^second$", "b")],
                hints=("coords",),
                unused="^old$",
                convert=lambda weights: {"layer.weight": torch.cat([weights["a"], weights["b"]])},
            )
        ],
    )
    class SplitNet(torch.nn.Module):
        def __init__(self, *, coords: int, inputs: int, outputs: int):
            super().__init__()
            self.layer = torch.nn.Linear(coords + inputs, outputs, bias=False)

        def forward(self, coords, inputs):
            return self.layer(torch.cat([coords, inputs], dim=-1))

    return SplitNet


SPLIT = {"first": torch.ones(2, 3), "second": torch.zeros(2, 3), "old": torch.ones(5)}


def test_a_model_declares_its_own_format(registry):
    cls = register_split("split-net")
    net = from_published(SPLIT, coords=2)
    assert type(net) is cls
    assert net(torch.ones(1, 1, 2), torch.ones(1, 1, 1)).tolist() == [[[3, 3, 0, 0]]]
    assert sum(weight.numel() for weight in net.parameters()) == 4 * 3 + 5
    assert infer_config(SPLIT) == {"name": "split-net", "coords": 3, "inputs": 0, "outputs": 4}
    assert from_published(SPLIT, outputs=4).layer.in_features == 3
    with pytest.raises(UserError, match="outputs=5 was given, but the weights have 4 outputs"):
        from_published(SPLIT, outputs=5)
    with pytest.raises(UserError, match=r"modes: .* take no such hint; hints: coords"):
        from_published(SPLIT, modes=12)
    with pytest.raises(UserError, match=r"lack 'second'"):
        from_published({"first": SPLIT["first"]})


def test_weights_that_fit_two_models_need_the_name_of_one(registry):
    register_split("split-net")
    other = register_split("split-again")
    with pytest.raises(UserError, match=r"split-again, split-net: choose one with model="):
        from_published(SPLIT)
    assert type(from_published(SPLIT, model="split-again")) is other
    with pytest.raises(UserError, match=r"not weights of a published model .* known formats: linearno"):
        from_published(SPLIT, model="linearno")
