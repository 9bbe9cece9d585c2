"""The spine: from disk to a number, and the folder that it leaves."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from linearno import load
from linearno.core.config import override, read_yaml
from linearno.core.errors import UserError
from linearno.experiment import evaluate, run
from linearno.initialization import open_splits
from linearno.metrics import relative_l2
from linearno.recipes import RECIPES
from linearno.run_config import RunConfig
from linearno.run_folder import open_run
from linearno.training.setup import split_validation

CPU = torch.device("cpu")


def test_a_run_folder_holds_what_the_design_says(tiny_run, tiny_config):
    names = {path.name for path in tiny_run.iterdir()}
    assert names == {
        "config.yaml",
        "metrics.json",
        "per_sample.csv",
        "history.jsonl",
        "model.safetensors",
        "model.json",
        "checkpoint",
        "figures",
    }
    assert read_yaml(tiny_run / "config.yaml", RunConfig) == tiny_config()
    assert len((tiny_run / "history.jsonl").read_text().splitlines()) == 3
    card = json.loads((tiny_run / "model.json").read_text())
    assert {"format", "recipe", "model", "spec", "seed", "commit", "versions"} <= card.keys()
    with np.load(tiny_run / "figures" / "cases.npz", allow_pickle=False) as cases:
        assert cases["phi_dominant"].shape == (2, 2, 81)
        assert cases["rank"].shape == (2, 2)
        assert cases["rank"].max() <= 6
        assert list(cases["error"]) == sorted(cases["error"])


@pytest.mark.parametrize(
    ("recipe", "change", "complaint"),
    [
        (
            "plasticity/linearno",
            "model.time=false",
            "task=timed is time-conditioned: set model.time=true",
        ),
        ("airfoil/linearno", "model.time=true", "task=direct provides no time input: set model.time=false"),
        (
            "ns/linearno",
            "task.name=completion",
            "task=completion does not fit model=linearno: set model.name=",
        ),
        (
            "burgers20/linearno",
            "task.name=direct",
            "task=direct does not fit model=cross-linearno: set task.name",
        ),
    ],
)
def test_a_model_that_does_not_fit_its_task_is_refused_before_anything_is_written(
    recipe, change, complaint, tmp_path
):
    config = RECIPES[recipe]()
    values = config.model_dump(mode="json")
    part, name = change.partition("=")[0].split(".")
    if part == "task":
        values["task"] = {}
    values[part][name] = yaml.safe_load(change.partition("=")[2])
    with pytest.raises(UserError, match=complaint):
        run(RunConfig.make(values), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_data_that_are_not_those_of_their_card_are_refused_and_no_folder_is_made(tiny_config, tmp_path):
    config = tiny_config()
    root = shutil.copytree(config.data.root, tmp_path / "data")
    config = override(config, [f"data.root={root}"])
    array = np.load(root / "train_sol.npy")
    array[0, 3, 3] += 1
    np.save(root / "train_sol.npy", array)
    with pytest.raises(UserError, match=r"train_sol.npy is not the file that was made: its sha256 differs"):
        run(config, tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_the_metric_is_the_mean_over_samples_of_the_bundle_in_physical_units(tiny_run):
    bundle, splits = load(tiny_run), open_splits(open_run(tiny_run).data)
    prediction = bundle.predict(splits.test.inputs, batch=4)
    errors = relative_l2(prediction, splits.test.targets)
    metrics = json.loads((tiny_run / "metrics.json").read_text())
    assert metrics["relative_l2"]["mean"] == pytest.approx(errors.mean().item(), rel=1e-5)
    with (tiny_run / "per_sample.csv").open() as file:
        rows = [float(row["relative_l2"]) for row in csv.DictReader(file)]
    assert rows == pytest.approx(errors.tolist(), rel=1e-5)
    mean = splits.train.targets.mean(dim=0, keepdim=True).expand_as(splits.test.targets)
    baseline = relative_l2(mean, splits.test.targets).mean().item()
    assert metrics["mean_field"]["relative_l2"] == pytest.approx(baseline)


def test_the_scaler_is_fitted_on_train_alone_and_saved_with_the_weights(tiny_run):
    splits = open_splits(open_run(tiny_run).data)
    scaler = load(tiny_run).scaler
    targets = splits.train.targets.double()
    assert scaler.outputs.mean.item() == pytest.approx(targets.mean().item(), rel=1e-5)
    assert scaler.outputs.std.item() == pytest.approx(targets.std().item(), rel=1e-5)


def test_two_runs_with_the_same_seed_agree_to_the_bit(tiny_run, tiny_config, tmp_path):
    run(tiny_config(), tmp_path / "again", CPU)
    first, second = (load(folder).model.state_dict() for folder in (tiny_run, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    run(tiny_config("darcy/linearno", "seed=1"), tmp_path / "other", CPU)
    third = load(tmp_path / "other").model.state_dict()
    assert not torch.equal(first["head.weight"], third["head.weight"])


def test_a_finished_run_is_not_trained_again(tiny_run, tiny_config, tmp_path):
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    before = (folder / "model.safetensors").read_bytes()
    epochs = []
    run(tiny_config(), folder, CPU, epochs.append)
    assert epochs == []
    assert (folder / "model.safetensors").read_bytes() == before


def test_evaluating_again_gives_the_same_numbers(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    config = open_run(folder)
    again = evaluate(load(folder), config, open_splits(config.data), folder)
    metrics = json.loads((tiny_run / "metrics.json").read_text())
    assert again["relative_l2"] == pytest.approx(metrics["relative_l2"])


@pytest.mark.parametrize("recipe", ["darcy/transolver", "demo/linearno", "demo/transolver"])
def test_every_recipe_runs_from_disk_to_metric(recipe, tiny_config, tmp_path):
    metrics = run(tiny_config(recipe, "training.epochs=1"), tmp_path, CPU)
    assert 0 < metrics["relative_l2"]["mean"] < 2


def test_training_beats_the_mean_field(tiny_config, tmp_path):
    metrics = run(tiny_config("darcy/linearno", "training.epochs=40"), tmp_path, CPU)
    assert metrics["relative_l2"]["mean"] < 0.8 * metrics["mean_field"]["relative_l2"]


def test_the_recipes_carry_the_published_settings():
    ours, theirs = (RECIPES[f"darcy/{name}"]() for name in ("linearno", "transolver"))
    for config in (ours, theirs):
        training = config.training
        assert (training.epochs, training.batch, training.lr, training.schedule) == (500, 4, 1e-3, "onecycle")
        assert (training.optimizer, training.validation, training.ema) == ("adamw", 0, None)
        assert (training.loss.gradient_weight, training.loss.spacing) == (0.1, "1/s")
        assert (config.data.train, config.data.test, config.data.stride) == (1000, 200, 5)
    assert (ours.training.weight_decay, ours.training.clip) == (1e-6, 1.0)
    assert (theirs.training.weight_decay, theirs.training.clip) == (1e-5, 0.1)
    assert (ours.model.stem, ours.model.temperature, ours.model.merge_layers) == ("conv", (0.01, 1.0), 2)
    assert theirs.model.unified.ref == 8


def test_a_folder_of_another_run_is_refused_with_the_difference(tiny_run, tiny_config):
    before = (tiny_run / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=r"model\.slices was 6, now 7.*choose another --out"):
        run(tiny_config("darcy/linearno", "model.slices=7"), tiny_run, CPU)
    assert (tiny_run / "config.yaml").read_bytes() == before


def test_bad_data_leaves_no_run_folder_behind(tiny_config, tmp_path):
    with pytest.raises(UserError, match="linearno data generate darcy"):
        run(tiny_config("darcy/linearno", f"data.root={tmp_path / 'none'}"), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "model.json").unlink(), r"model\.json does not exist, but all 3 epochs are done"),
        (lambda run: (run / "model.json").write_text("{"), r"model\.json is not valid JSON"),
        (lambda run: (run / "model.json").write_text("[]"), "does not describe a model"),
        (lambda run: change(run, "format", 99), "has format 99, this version reads 1"),
        (lambda run: change(run, "model", {"width": 24}), "weights do not fit the model"),
        (
            lambda run: change(run, "model", {"name": "linearon"}),
            "needs the model 'linearon'.*which is not registered: import the module that defines it",
        ),
        (
            lambda run: (run / "model.safetensors").write_bytes(b"x" * 50),
            "truncated or not a safetensors file",
        ),
    ],
)
def test_a_damaged_bundle_is_named_in_one_line(tiny_run, tmp_path, damage, message):
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def change(folder, field, value):
    card = json.loads((folder / "model.json").read_text())
    if isinstance(value, dict):
        name = {"name": value["name"]} if "name" in value else {}
        settings = {k: v for k, v in value.items() if k != "name"}
        value = card[field] | name | {"settings": card[field]["settings"] | settings}
    (folder / "model.json").write_text(json.dumps(card | {field: value}))


def test_held_out_samples_do_not_touch_the_scaler(tiny_config, tmp_path):
    config = tiny_config("darcy/linearno", "training.validation=8", "training.epochs=1")
    metrics = run(config, tmp_path, CPU)
    seen, held_out = split_validation(open_splits(config.data).train, 8, config.seed)
    assert load(tmp_path).scaler.outputs.mean.item() == pytest.approx(
        seen.targets.double().mean().item(), rel=1e-5
    )
    assert len(held_out) == 8
    assert "8 validation samples" in metrics["protocol"]
