"""An ensemble on meshes of different sizes: members, mean and standard deviation, intervals, resuming."""

import json

import numpy as np
import pytest
import torch

from linearno import load
from linearno.experiment import run as run_experiment
from linearno.inference import query_mesh
from linearno.run_folder import open_run
from tests.commands import linearno, refused
from tests.meshes.mesh_examples import SET, scattered

pytestmark = pytest.mark.slow

MEMBERS = 2
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Eight clouds of 20 to 22 points."""
    root = tmp_path_factory.mktemp("own") / "clouds"
    root.mkdir()
    for number in range(8):
        points = scattered(20 + number % 3, 2)
        p = np.sin(3 * points[:, 0]) * (1 + 0.1 * number)
        np.savez(root / f"case_{number}.npz", points=points, p=p, speed=float(number))
    path = root.parent / "dataset.yaml"
    code, output = linearno("init", root, "--out", path, "--targets", "p", "--globals", "speed")
    assert code == 0, output
    return path


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("ensemble") / "run"
    words = ("train", dataset, "--ensemble", MEMBERS, "--minutes", 0.01, "--out", out, "--device", "cpu")
    code, output = linearno(*words)
    assert code == 0, output
    assert f"linearno: {MEMBERS} × 20 epochs" in output
    assert "epoch 40/40" in output
    return out


def members_of(run):
    return [load(run / f"member{number}") for number in range(1, MEMBERS + 1)]


def test_members_differ_but_hold_out_the_same_cases(run):
    parts = members_of(run)
    weights = [next(iter(part.model.parameters())) for part in parts]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    assert [part.seed for part in parts] == [0, 1]
    for part in parts[1:]:  # fitted to the same training cases
        assert torch.equal(part.scaler.outputs.mean, parts[0].scaler.outputs.mean)


@pytest.mark.parametrize("memory", [None, "1GB"])
def test_mean_and_deviation_are_those_of_the_members(run, memory):
    inputs, coords = torch.full((1, 30, 1), 3.0), torch.rand(30, 2)
    each = torch.stack([part.predict(inputs, coords) for part in members_of(run)])
    mean, std = load(run).predict_with_std(inputs, coords, memory=memory)
    torch.testing.assert_close(mean, each.mean(dim=0))
    torch.testing.assert_close(std, each.std(dim=0), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(load(run).predict(inputs, coords, memory=memory), mean)
    assert (std > 0).all()
    as_arrays = load(run).predict_with_std(inputs.numpy(), coords.numpy(), memory=memory)
    np.testing.assert_allclose(as_arrays[1], std, rtol=1e-6)


def test_intervals_follow_the_deviation_and_their_coverage_is_reported(run, dataset, tmp_path):
    bundle = load(run)
    assert bundle.intervals.deviations == ()
    mesh = dataset.parent / "clouds" / "case_3.npz"
    code, output = linearno("predict", run, mesh, "-o", tmp_path / "out.npz", "--device", "cpu")
    assert code == 0, output
    with np.load(tmp_path / "out.npz") as file:
        grid = dict(file)
    assert (grid["p_std"] > 0).all()
    np.testing.assert_allclose(grid["p_interval"], bundle.intervals.factors[0] * grid["p_std"], rtol=1e-5)
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 <= metrics["coverage"]["p"] <= 1
    assert metrics["protocol"].startswith("mean of 2 members")
    choice = json.loads((run / "choice.json").read_text())
    assert choice["validation"][-1]["name"] == "linearno, 2 members"


def test_a_query_gives_the_mean_of_the_members(run, dataset):
    mesh, points = dataset.parent / "clouds" / "case_3.npz", np.array([[0.3, 0.4], [0.5, 0.6]])
    each = [query_mesh(run / f"member{number}", mesh, points) for number in (1, 2)]
    np.testing.assert_allclose(query_mesh(run, mesh, points), np.mean(each, axis=0), rtol=1e-5)


def test_an_interrupted_ensemble_resumes_to_the_same_weights_and_takes_more_epochs(dataset, tmp_path):
    words = ("train", dataset, *SET, "--ensemble", 2, "--device", "cpu", "--out")
    assert linearno(*words, tmp_path / "whole")[0] == 0
    config = open_run(tmp_path / "whole")

    def stop(record):
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "cut", CPU, stop)
    assert not (tmp_path / "cut" / "model.json").exists()
    assert "is not trained to the end" in refused("evaluate", tmp_path / "cut")
    assert linearno("train", tmp_path / "cut", "--device", "cpu")[0] == 0
    cut, whole = (load(tmp_path / name).model.state_dict() for name in ("cut", "whole"))
    assert all(torch.equal(cut[name], whole[name]) for name in whole)
    code, output = linearno("train", tmp_path / "cut", "--more-epochs", 1, "--device", "cpu")
    assert code == 0, output
    for number in (1, 2):
        assert len((tmp_path / f"cut/member{number}/history.jsonl").read_text().splitlines()) == 3
    longer = load(tmp_path / "cut").model.state_dict()
    for number in (0, 1):
        name = f"ensemble_members.{number}.head.bias"
        assert not torch.equal(longer[name], whole[name])


def test_a_model_in_closed_form_has_no_ensemble(dataset, tmp_path):
    words = ("train", dataset, "--set", "model.name=pod-gp", "--ensemble", 2, "--out", tmp_path / "run")
    assert "fitted in closed form" in refused(*words)
