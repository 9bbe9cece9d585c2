"""Runs that go further than planned: resumed by their folder, extended, started from another's weights."""

import json
import logging

import pytest
import torch
from torch import nn

from linearno import load, model
from linearno.core.atomic_io import read_tensors
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.experiment import run
from linearno.initialization import open_splits as splits_of
from linearno.initialization import untrained
from linearno.run_folder import extend_run, open_run
from tests.commands import linearno, refused

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def weights(folder):
    return read_tensors(folder / "model.safetensors", how="")


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("schedule", ["constant", "cosine", "onecycle"])
def test_more_epochs_continue_a_finished_run(tiny_config, tmp_path, schedule):
    """At a constant rate the result is that of a run that was planned so long, to the bit."""
    changes = [f"training.schedule={schedule}", "training.ema=0.9"]
    short, long = tmp_path / "short", tmp_path / "long"
    run(tiny_config("darcy/linearno", *changes, "training.epochs=2"), short, CPU)
    run(tiny_config("darcy/linearno", *changes, "training.epochs=5"), long, CPU)
    code, output = linearno("train", short, "--more-epochs", 3, "--device", "cpu")
    assert code == 0, output
    assert open_run(short) == open_run(long)
    records = [
        [json.loads(line) for line in (f / "history.jsonl").read_text().splitlines()] for f in (short, long)
    ]
    assert [record["epoch"] for record in records[0]] == [1, 2, 3, 4, 5]
    rates = [[record["lr"] for record in of_run[2:]] for of_run in records]
    assert rates[0] == pytest.approx(rates[1])  # the longer schedule, from its third epoch on
    if schedule == "constant":
        assert_same(weights(short), weights(long))


def test_an_unfinished_run_gets_no_more_epochs_and_a_recipe_none_at_all(tiny_run, tiny_config, tmp_path):
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "config.yaml").write_bytes((tiny_run / "config.yaml").read_bytes())
    with pytest.raises(UserError, match="has finished 0 of 3 epochs: finish the run with `linearno train"):
        extend_run(folder, 2)
    assert "expected its folder, got 'darcy/linearno'" in refused(
        "train", "darcy/linearno", "--more-epochs", 3
    )
    assert "omit --set, --out and --init-from" in refused("train", tiny_run, "--set", "seed=1")


@pytest.mark.parametrize("schedule", ["constant", "onecycle"])
def test_a_run_that_has_stopped_early_takes_all_of_the_further_epochs(tiny_config, tmp_path, schedule):
    changes = [f"training.schedule={schedule}", "training.lr=1e-30", "training.weight_decay=0"]
    changes += ["training.epochs=20", "training.validation=2", "training.patience=2"]
    run(tiny_config("darcy/linearno", *changes), tmp_path, CPU)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3
    code, output = linearno("train", tmp_path, "--more-epochs", 4, "--device", "cpu")
    assert code == 0, output
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 7
    training = open_run(tmp_path).training
    assert (training.epochs, training.patience) == (7, 0)


def test_a_run_is_resumed_by_its_folder(tiny_run, tmp_path):
    before = weights(tiny_run)
    code, output = linearno("train", tiny_run, "--device", "cpu")
    assert code == 0, output
    assert_same(weights(tiny_run), before)


def test_an_extended_run_that_was_stopped_is_not_evaluated_as_if_it_were_done(tiny_config, tmp_path):
    folder = tmp_path / "run"
    run(tiny_config("darcy/linearno"), folder, CPU)
    extend_run(folder, 2)
    assert "3 of 5 epochs are done; continue: linearno train" in refused("evaluate", folder)
    assert load(folder) is not None  # the model of three epochs still predicts
    assert linearno("train", folder, "--device", "cpu")[0] == 0
    assert linearno("evaluate", folder, "--device", "cpu")[0] == 0


def test_a_warm_start_begins_with_the_weights_and_the_scaling_of_the_other_run(tiny_run, tiny_config, caplog):
    config = tiny_config("darcy/linearno", f"init_from={tiny_run}", "data.train=6")
    with caplog.at_level(logging.INFO):
        bundle, _ = untrained(config, splits_of(config.data))
    source = load(tiny_run)
    assert_same(bundle.model.state_dict(), source.model.state_dict())
    assert_same(bundle.scaler.state_dict(), source.scaler.state_dict())
    assert "using the scaler of" in caplog.text
    fresh, _ = untrained(override(config, ["init_from=null"]), splits_of(config.data))
    assert not torch.equal(fresh.scaler.inputs.mean, source.scaler.inputs.mean)


def test_what_does_not_fit_starts_afresh_and_is_named(tiny_run, tiny_config, caplog):
    config = tiny_config("darcy/linearno", f"init_from={tiny_run}", "model.mlp_ratio=2")
    with caplog.at_level(logging.INFO):
        bundle, _ = untrained(config, splits_of(config.data))
    assert "is initialised randomly" in caplog.text
    source = load(tiny_run).model.state_dict()
    assert torch.equal(bundle.model.state_dict()["lift.0.weight"], source["lift.0.weight"])
    missing = tiny_config("darcy/linearno", "init_from=nowhere")
    with pytest.raises(UserError, match="does not exist"):
        untrained(missing, splits_of(missing.data))


@model("no-common-weights")
class NoCommonWeights(nn.Module):
    """A layer with a name that no other model has."""

    def __init__(self, *, coords: int, inputs: int, outputs: int):
        super().__init__()
        self.alone = nn.Linear(coords + inputs, outputs)

    def forward(self, coords, inputs=None):
        return self.alone(torch.cat([coords, inputs], dim=-1))


def test_a_run_of_which_nothing_fits_is_no_start(tiny_run, tiny_config):
    config = override(tiny_config(), ["model.name=no-common-weights", f"init_from={tiny_run}"])
    with pytest.raises(UserError, match="none of its weights has a name and shape of this model"):
        untrained(config, splits_of(config.data))


def test_a_warm_start_from_the_command_line_is_part_of_the_configuration(tiny_run, darcy_folder, tmp_path):
    folder = tmp_path / "run"
    size = json.loads((tiny_run / "model.json").read_text())["model"]["settings"]
    sizes = [f"--set=model.{name}={size[name]}" for name in ("width", "depth", "heads", "slices")]
    data = [f"--set=data.{change}" for change in ("train=6", "test=3", "stride=4", f"root={darcy_folder}")]
    code, output = linearno(
        "train",
        "darcy/linearno",
        *sizes,
        *data,
        "--set=training.epochs=1",
        "--init-from",
        tiny_run,
        "--out",
        folder,
    )
    assert code == 0, output
    assert open_run(folder).init_from == str(tiny_run)


def test_a_log_file_gets_a_line_for_each_epoch_and_an_estimate(darcy_folder, tmp_path, caplog, tiny_config):
    sizes = [f"--set=model.{change}" for change in ("width=8", "depth=1", "heads=2", "slices=3")]
    data = [f"--set=data.{change}" for change in ("train=8", "test=3", "stride=4", f"root={darcy_folder}")]
    more = ["--set=training.epochs=4", "--set=training.batch=2", "--out", tmp_path / "run", "--device", "cpu"]
    with caplog.at_level(logging.INFO):
        code, output = linearno("train", "darcy/linearno", *sizes, *data, *more)
    assert code == 0, output
    lines = [line for line in output.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    assert all("loss" in line for line in lines)
    assert ["left" in line for line in lines] == [True, True, True, False]
    assert [record for record in caplog.messages if record.startswith("about ")] != []
