"""POD-GP: exact cases, scikit-learn as an independent twin, standard deviations, and refusals."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from linearno import fit, load
from linearno.cli import app
from linearno.core import optional_deps
from linearno.core.errors import UserError
from linearno.data import FieldData, FieldSpec
from linearno.experiment import run
from linearno.inference.export import export_run
from linearno.models import MODELS, build_model
from linearno.models import model as register
from linearno.models.pod_gp import JITTER, PodGP
from linearno.recipes import RECIPES
from linearno.run_config import apply_changes
from linearno.run_folder import extend_run
from linearno.training import Rollout

POINTS = 23


def smooth(samples, seed=0, low=-1.0, high=1.0):
    """Samples of two parameters in [low, high]: inputs linear in them, outputs smooth."""
    generator = torch.Generator().manual_seed(seed)
    p = (low + (high - low) * torch.rand(samples, 2, generator=generator))[:, None]
    x = torch.linspace(0, 1, POINTS)[:, None]
    a = p[..., :1] * torch.sin(3 * x) + p[..., 1:] * x
    first = torch.sin(2 * p[..., :1] * x + p[..., 1:])
    return {"coords": x, "inputs": a, "targets": torch.cat([first, p.prod(dim=-1, keepdim=True) * x], dim=-1)}


def fitted(data, **settings):
    """The model alone, fitted to unscaled fields."""
    model = PodGP(coords=1, inputs=data["inputs"].shape[-1], outputs=data["targets"].shape[-1], **settings)
    torch.manual_seed(0)
    model.fit(data["coords"].expand(len(data["targets"]), -1, -1), data["inputs"], data["targets"])
    return model


def call(model, data):
    return data["coords"].expand(len(data["targets"]), -1, -1), data["inputs"]


def relative_error(prediction, data):
    return ((prediction - data["targets"]).norm() / data["targets"].norm()).item()


def test_a_linear_map_of_few_modes_is_exact():
    data, new = smooth(60), smooth(20, seed=1)
    operator = torch.randn(POINTS, POINTS, generator=torch.Generator().manual_seed(2))
    for part in (data, new):
        part["targets"] = operator @ part["inputs"]
    model = fitted(data, kernel="rbf")
    assert model.latents.shape[1] == 2
    assert relative_error(model(*call(model, new)), new) < 1e-3


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
@pytest.mark.parametrize("noise", [0.0, 1e-3, None])
def test_mean_and_deviation_are_those_of_scikit_learn(kernel, noise):
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    data, new = smooth(40), smooth(15, seed=1)
    data = {name: part.double() for name, part in data.items()}
    new = {name: part.double() for name, part in new.items()}
    model = fitted(data, kernel=kernel, noise=noise)
    mean, std = model.mean_and_std(*call(model, new))
    centred = data["targets"] - model.outputs_mean
    components = centred.flatten(1) @ model.outputs_basis
    z = (new["inputs"] - model.inputs_mean).flatten(1) @ model.inputs_basis
    form = kernels.RBF() if kernel == "rbf" else kernels.Matern(nu=2.5)
    if model.noise > 0:
        form += kernels.WhiteKernel(model.noise.item())
    columns = []
    for component, amplitude in zip(components.T, model.amplitudes.tolist(), strict=True):
        process = kernels.ConstantKernel(amplitude) * form
        twin = GaussianProcessRegressor(process, alpha=JITTER * amplitude, optimizer=None)
        columns.append(twin.fit(model.latents.numpy(), component.numpy()).predict(z.numpy(), return_std=True))
    means, deviations = (torch.tensor(np.stack(part, axis=1)) for part in zip(*columns, strict=True))
    basis = model.outputs_basis
    expected = model.outputs_mean + (means @ basis.T).view_as(mean)
    variance = (deviations.square() @ basis.square().T).view_as(mean) + model.residual
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(std, variance.sqrt(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
def test_at_full_rank_training_targets_are_predicted_without_deviation(kernel):
    data = smooth(30)
    model = fitted(data, kernel=kernel, noise=0.0, output_components=100)
    mean, std = model.mean_and_std(*call(model, data))
    torch.testing.assert_close(mean, data["targets"], rtol=1e-4, atol=1e-4)
    assert std.max() < 1e-3


def test_two_deviations_cover_held_out_samples_and_grow_outside_the_training_range():
    data, new, outside = smooth(40), smooth(200, seed=1), smooth(200, seed=2, low=2.0, high=3.0)
    surrogate = fit("pod-gp", data, device="cpu")
    mean, std = surrogate.predict_with_std(new["inputs"])
    covered = ((mean - new["targets"]).abs() <= 2 * std).double().mean()
    assert covered > 0.85
    _, far = surrogate.predict_with_std(outside["inputs"])
    assert far.mean() > 10 * std.mean()


def test_deviations_are_calibrated_where_noise_is_known():
    data, new = smooth(200), smooth(200, seed=1)
    generator = torch.Generator().manual_seed(3)
    for part in (data, new):
        weight = 0.05 * torch.randn(len(part["targets"]), 1, 1, generator=generator)
        part["targets"] = part["targets"][..., :1] + weight  # one more mode, which the inputs do not tell
    mean, std = fit("pod-gp", data, device="cpu").predict_with_std(new["inputs"])
    covered = ((mean - new["targets"]).abs() <= 2 * std).double().mean()
    assert 0.85 < covered < 0.995


def drawn_from_a_process(samples, modes=4, points=31):
    """Two parameters of a shared mesh; output components are draws of a process with the fitted kernel."""
    generator = torch.Generator().manual_seed(3)
    p = torch.rand(samples, 2, generator=generator, dtype=torch.float64)
    r = 5**0.5 * torch.cdist(p / torch.tensor([0.5, 1.0]), p / torch.tensor([0.5, 1.0]))
    kernel = (1 + r + r.square() / 3) * torch.exp(-r) + 1e-9 * torch.eye(samples)
    w = torch.linalg.cholesky(kernel) @ torch.randn(samples, modes, generator=generator, dtype=torch.float64)
    x = torch.linspace(0, 1, points, dtype=torch.float64)[:, None]
    basis = torch.cos(torch.pi * x * torch.arange(modes)) * 0.7 ** torch.arange(modes)
    inputs = p[:, None].expand(-1, points, -1)
    return {"coords": x.float(), "inputs": inputs.float(), "targets": (w @ basis.T)[..., None].float()}


def part(data, where):
    return {name: field if name == "coords" else field[where] for name, field in data.items()}


def test_standardised_errors_of_draws_of_a_process_are_normal():
    data = drawn_from_a_process(400)
    train, test = part(data, slice(100)), part(data, slice(100, None))
    mean, std = fit("pod-gp", train, device="cpu").predict_with_std(test["inputs"])
    errors = (mean - test["targets"]) / std
    assert 0.63 < (errors.abs() < 1).double().mean() < 0.74
    assert 0.92 < (errors.abs() < 2).double().mean() < 0.98
    assert relative_error(mean, test) < 0.1


def test_two_parameters_of_a_shared_mesh_are_learnt_from_forty_samples():
    train, test = smooth(40), smooth(100, seed=1)
    mean = torch.as_tensor(fit("pod-gp", train, device="cpu").predict(test["inputs"]))
    assert relative_error(mean, test) < 0.01


def test_arrays_give_arrays_and_the_mean_is_the_prediction():
    data = smooth(20)
    surrogate = fit("pod-gp", data, device="cpu")
    asked = data["inputs"][:3].numpy()
    mean, std = surrogate.predict_with_std(asked)
    assert isinstance(mean, np.ndarray)
    assert isinstance(std, np.ndarray)
    assert mean.shape == std.shape == (3, POINTS, 2)
    np.testing.assert_array_equal(mean, surrogate.predict(asked))


def test_the_deviation_has_the_units_of_the_data():
    data = smooth(30)
    large = data | {"targets": 1000 * data["targets"]}
    std, larger = (
        fit("pod-gp", part, device="cpu").predict_with_std(data["inputs"])[1] for part in (data, large)
    )
    torch.testing.assert_close(larger, 1000 * std, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("varying", ["inputs", "coords", "both"])
def test_a_saved_model_predicts_the_same_to_the_bit(varying, tmp_path):
    data = smooth(20)
    if varying != "inputs":
        data["coords"] = data["coords"] + 0.1 * data["inputs"]
    if varying == "coords":
        del data["inputs"]
    surrogate = fit("pod-gp", data, device="cpu", out=tmp_path / "run")
    loaded = load(tmp_path / "run")
    asked = data.get("inputs"), None if varying == "inputs" else data["coords"]
    for found, expected in zip(
        loaded.predict_with_std(*asked), surrogate.predict_with_std(*asked), strict=True
    ):
        assert torch.equal(found, expected)
    assert relative_error(loaded.predict(*asked), data) < 0.1
    assert len(loaded.model.coords_basis) == (0 if varying == "inputs" else POINTS)


def test_weights_load_into_an_unfitted_model():
    data = smooth(20)
    model = fitted(data)
    other = PodGP(coords=1, inputs=1, outputs=2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(*call(model, data)), model(*call(model, data)))


@pytest.mark.parametrize("name", ["weights", "factor", "outputs_basis"])
def test_a_saved_state_of_other_shapes_is_refused(name, tmp_path):
    from safetensors.torch import load_file, save_file

    fit("pod-gp", smooth(20), device="cpu", out=tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"model.{name}"] = tensors[f"model.{name}"][1:].clone()
    save_file(tensors, path)
    with pytest.raises(UserError, match=f"do not fit the model .*{name}"):
        load(tmp_path / "run")


def test_samples_above_the_limit_are_drawn_with_a_notice(caplog):
    model = fitted(smooth(40), max_samples=25)
    assert model.latents.shape[0] == 25
    assert "25 of 40 samples" in caplog.text


def test_many_components_share_one_length_scale():
    model = fitted(smooth(40), max_lengths=1)
    new = smooth(20, seed=1)
    assert relative_error(model(*call(model, new)), new) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("form", "suffix"), [("onnx", ".onnx"), ("torch", ".pt2")])
def test_an_exported_file_agrees(form, suffix, tmp_path):
    fit("pod-gp", smooth(20), device="cpu", out=tmp_path / "run")
    made = export_run(tmp_path / "run", tmp_path / f"model{suffix}", form)
    assert made.difference is None or made.difference < 1e-3


def test_a_rollout_is_fitted_step_by_step():
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(12, POINTS, 1, generator=generator).cumsum(dim=1) / POINTS
    frames = torch.cat([first * 0.9**step for step in range(5)], dim=-1)
    spec = FieldSpec(coords=("x",), inputs=("a", "b"), outputs=("c", "d", "e"))
    data = FieldData(spec, torch.linspace(0, 1, POINTS)[:, None], frames[..., :2], frames[..., 2:])
    surrogate = fit("pod-gp", data, task=Rollout(), device="cpu")
    found = surrogate.predict(frames[..., :2])
    assert found.shape == (12, POINTS, 3)
    assert ((found - frames[..., 2:]).norm() / frames[..., 2:].norm()).item() < 0.05
    with pytest.raises(UserError, match="direct task alone"):
        surrogate.predict_with_std(frames[..., :2])
    with pytest.raises(UserError, match=r"task\.forcing=teacher"):
        fit("pod-gp", data, task=Rollout(forcing="none"), device="cpu")


BAD_SETTINGS = {
    "input_components": (0, "input_components=0: expected a number"),
    "output_components": (1.5, r"output_components=1\.5: expected a number"),
    "noise": (-1.0, r"noise=-1\.0: expected a share"),
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_bad_setting_is_refused(setting):
    value, message = BAD_SETTINGS[setting]
    with pytest.raises(UserError, match=message):
        PodGP(coords=1, outputs=1, **{setting: value})


BAD_TRAINING = {
    "epochs": ({"epochs": 5}, "training.epochs=5: .* set it to 1"),
    "points": ({"points": 5}, "takes all points"),
    "shards": ({"shards": 2}, "leave it out"),
}


@pytest.mark.parametrize("setting", BAD_TRAINING)
def test_a_training_setting_of_gradient_steps_is_refused(setting):
    given, message = BAD_TRAINING[setting]
    with pytest.raises(UserError, match=message):
        fit("pod-gp", smooth(10), device="cpu", **given)


@pytest.mark.parametrize(
    ("part", "message"), [("inputs", "geometry and inputs are the same"), ("targets", "targets are the same")]
)
def test_samples_that_are_all_the_same_are_refused(part, message):
    data = smooth(10)
    data[part] = data[part][:1].expand(10, -1, -1)
    with pytest.raises(UserError, match=message):
        fit("pod-gp", data, device="cpu")


def test_a_single_sample_is_refused():
    with pytest.raises(UserError, match="two samples or more"):
        fit("pod-gp", smooth(1), device="cpu")


def test_meshes_of_different_sizes_are_refused():
    data = [{"coords": torch.rand(n, 2), "targets": torch.rand(n, 1)} for n in (5, 7)]
    with pytest.raises(UserError, match="takes meshes of one size"):
        fit("pod-gp", data, device="cpu")


def test_another_number_of_points_is_refused():
    surrogate = fit("pod-gp", smooth(10), device="cpu")
    with pytest.raises(UserError, match=f"takes the {POINTS} points of its training data .* got 5 points"):
        surrogate.predict(torch.rand(1, 5, 1), torch.rand(5, 1))
    with pytest.raises(UserError, match=f"fitted at {POINTS} points, these samples have 5"):
        surrogate.model(torch.rand(1, 5, 1), torch.rand(1, 5, 1))


def test_other_points_of_the_same_number_are_reported(caplog):
    surrogate = fit("pod-gp", smooth(10), device="cpu")
    surrogate.predict(torch.rand(1, POINTS, 1), torch.rand(POINTS, 1))
    assert "takes point k for point k" in caplog.text


def test_a_model_that_is_not_fitted_says_so():
    with pytest.raises(UserError, match="has not been fitted"):
        PodGP(coords=1, outputs=1)(torch.rand(1, 5, 1))


def test_targets_of_masked_outputs_are_refused():
    spec = FieldSpec(coords=("x",), inputs=("a",), outputs=("u",), masked_outputs=("u",))
    data = smooth(10)
    held = FieldData(spec, data["coords"], data["inputs"], data["targets"][..., :1])
    with pytest.raises(UserError, match="needs targets at all points"):
        fit("pod-gp", held, device="cpu")


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setattr(optional_deps, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'linearno\[classical\]'"):
        fit("pod-gp", smooth(10), device="cpu")


def test_a_model_without_a_deviation_names_those_with_one():
    surrogate = fit("mlp", smooth(4), device="cpu", epochs=1)
    with pytest.raises(UserError, match="does not support standard deviations; models that do: pod-gp"):
        surrogate.predict_with_std(smooth(4)["inputs"])


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("/pod-gp")])
def test_recipes_fit_model_and_task(name):
    config = RECIPES[name]()
    config.require_task_fits_model()
    assert (config.training.epochs, config.training.precision) == (1, "fp32")
    assert MODELS[config.model.name].cls is PodGP


def test_a_recipe_runs_is_reported_and_predicts_with_deviations(tmp_path):
    invoke = CliRunner().invoke
    data, folder = tmp_path / "darcy", tmp_path / "run"
    sizes = ["--train", "12", "--test", "4", "--resolution", "15", "--device", "cpu", "--workers", "1"]
    made = invoke(app, ["data", "generate", "darcy", *sizes, "--out", str(data)])
    assert made.exit_code == 0, made.output
    changes = [f"data.root={data}", "data.train=12", "data.test=4", "data.stride=1"]
    config = apply_changes(RECIPES["darcy/pod-gp"](), [*changes, "data.source=generated"])
    for _ in range(2):  # a repeated run is fitted again
        metrics = run(config, folder, torch.device("cpu"))
        assert metrics["protocol"] == "fitted in closed form"
        assert metrics["parameters"] > 0
        assert len((folder / "history.jsonl").read_text().splitlines()) == 1
    assert not (folder / "checkpoint").exists()
    with pytest.raises(UserError, match="takes no more epochs"):
        extend_run(folder, 5)
    for command in (["evaluate", str(folder)], ["report", str(folder)]):
        found = invoke(app, command)
        assert found.exit_code == 0, found.output
    inputs, out = tmp_path / "new.npz", tmp_path / "out.npz"
    np.savez(inputs, coeff=np.ones((2, 15, 15), dtype=np.float32))
    found = invoke(app, ["predict", str(folder), str(inputs), "-o", str(out), "--std"])
    assert found.exit_code == 0, found.output
    written = np.load(out)
    assert set(written.files) == {"sol", "sol_std"}
    assert (written["sol_std"] > 0).all()
    assert written["sol_std"].shape == (2, 15, 15)
    with pytest.raises(UserError, match="leave it out"):
        run(apply_changes(config, ["init_from=somewhere"]), tmp_path / "other", torch.device("cpu"))


@pytest.mark.slow
def test_pipe_flow_of_a_hundred_samples(tmp_path):
    """Error on generated pipes at 33 points a side."""
    data, folder = tmp_path / "pipe", tmp_path / "run"
    sizes = ["--train", "100", "--test", "20", "--resolution", "33", "--device", "cpu"]
    made = CliRunner().invoke(app, ["data", "generate", "pipe", *sizes, "--out", str(data)])
    assert made.exit_code == 0, made.output
    changes = [f"data.root={data}", "data.train=100", "data.test=20", "data.source=generated"]
    metrics = run(apply_changes(RECIPES["pipe/pod-gp"](), changes), folder, torch.device("cpu"))
    assert metrics["relative_l2"]["mean"] < 0.05
    assert metrics["mean_field"]["relative_l2"] > 0.1
    assert json.loads((folder / "model.json").read_text())["model"]["name"] == "pod-gp"


def test_the_model_is_built_without_data_on_the_meta_device():
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))
    with torch.device("meta"):
        model = build_model(MODELS["pod-gp"].config.make({"name": "pod-gp"}), spec)
    assert model.state_dict() == {}


def test_a_model_of_ones_own_is_fitted_in_closed_form_and_loads_again(tmp_path):
    """The mean of the training targets, whose shape follows from the data."""

    @register("mean-field")
    class MeanField(nn.Module):
        """Mean of the targets."""

        def __init__(self, *, coords: int, inputs: int, outputs: int):
            super().__init__()
            self.register_buffer("mean", None)

        def require_fittable(self, samples):
            pass

        def fit(self, coords, inputs, targets):
            self.mean = targets.mean(dim=0)

        def allocate(self, shapes):
            self.mean = torch.zeros(shapes["mean"])

        def forward(self, coords, inputs=None):
            return self.mean.expand(len(coords), -1, -1)

    data = smooth(10)
    try:
        surrogate = fit("mean-field", data, device="cpu", out=tmp_path / "run")
        loaded = load(tmp_path / "run")
    finally:
        del MODELS._entries["mean-field"]
    found = loaded.predict(data["inputs"])
    assert torch.equal(found, surrogate.predict(data["inputs"]))
    torch.testing.assert_close(found, data["targets"].mean(dim=0).expand_as(found))
