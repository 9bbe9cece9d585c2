from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from linearno.cli import app
from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.data.airfoil import FILES, generate_airfoil
from linearno.data.generation.card import read_card
from linearno.recipes import RECIPES
from linearno.solvers import airfoil as solver
from linearno.solvers import steady_euler
from tests.data.curved_sets import AIRFOILS

POINTS = 45 * 11


@pytest.fixture
def finished(finished_airfoil) -> Path:
    """3 + 2 airfoils at 45×11, to be read only."""
    return finished_airfoil


@pytest.fixture
def published(finished, tmp_path) -> Path:
    """The same five airfoils under the published names, in float64: train, test, two more."""
    return AIRFOILS.publish(finished, tmp_path / "published")


def test_the_set_on_disk_has_the_published_fields_and_how_each_was_made(finished):
    card = read_card(finished, how="")
    assert {name: facts.shape for name, facts in card.files.items() if name.startswith("train")} == {
        "train_X.npy": (3, 45, 11),
        "train_Y.npy": (3, 45, 11),
        "train_Q.npy": (3, 5, 45, 11),
        "train_theta.npy": (3, 8),
        "train_res.npy": (3,),
        "train_draws.npy": (3,),
    }
    assert (card.name, card.resolution) == ("airfoil", 45)
    assert np.load(finished / "train_draws.npy").tolist() == [1, 1, 1]
    assert (np.load(finished / "train_res.npy") <= 1e-6).all()
    assert AIRFOILS.verify(finished) == []


def test_points_run_outwards_and_then_around_the_airfoil_with_the_mach_number_there(finished):
    train, test, source = AIRFOILS.open(finished)
    x, y, q = (np.load(finished / f"train_{field}.npy") for field in "XYQ")
    for k in range(0, POINTS, 7):
        i, j = divmod(k, 11)
        assert train.coords[1, k].tolist() == [x[1, i, j], y[1, i, j]]
        assert train.targets[1, k].item() == q[1, 4, i, j]
    assert (train.coords.shape, train.inputs, test.targets.shape) == ((3, POINTS, 2), None, (2, POINTS, 1))
    assert (train.spec.coords, train.spec.inputs, train.spec.outputs) == (("x", "y"), (), ("mach",))
    assert (train.spec.grid, train.spec.standardised) == ((45, 11), ())
    assert "seed 1, resolution 45" in source


def test_fewer_points_can_be_requested(finished):
    train, _, _ = AIRFOILS.open(finished, stride=2)
    q = np.load(finished / "train_Q.npy")
    np.testing.assert_array_equal(train.targets.reshape(3, 23, 6), q[:, 4, ::2, ::2])
    with pytest.raises(UserError, match=r"stride=4 does not fit .*these do: 1, 2"):
        AIRFOILS.open(finished, stride=4)


def test_published_files_are_tested_on_the_samples_after_the_training_ones(published, finished):
    speed = np.load(published / "NACA_Cylinder_Q.npy")[:, 4].reshape(7, -1).astype(np.float32)
    train, test, source = AIRFOILS.open(published)
    np.testing.assert_array_equal(train.targets[..., 0], speed[:3])
    np.testing.assert_array_equal(test.targets[..., 0], speed[3:5])
    assert test.targets.dtype == test.coords.dtype == torch.float32
    assert source == (
        "published files NACA_Cylinder_X.npy, NACA_Cylinder_Y.npy, NACA_Cylinder_Q.npy in "
        f"{published}, tested on samples 3 to 4"
    )
    assert AIRFOILS.verify(published) == []
    ours = AIRFOILS.open(finished)
    torch.testing.assert_close(ours.test.targets, test.targets, rtol=0, atol=0)
    torch.testing.assert_close(ours.test.coords, test.coords, rtol=0, atol=0)


def test_a_size_that_is_no_c_grid_is_reported_by_the_command(tmp_path):
    command = ["data", "generate", "airfoil", "--resolution", "50", "--train", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "resolution 50 does not fit; Airfoil needs" in result.output


def test_an_airfoil_that_is_drawn_again_keeps_its_number_and_leaves_the_others_alone(
    serial, finished, tmp_path, monkeypatch
):
    calls = []

    def second_fails_once(cells, outside, concurrent):
        calls.append(1)
        reached = torch.full((1,), float(len(calls) == 2), dtype=torch.float64)
        return steady_euler.SteadyFlow(outside, reached, torch.zeros_like(reached))

    monkeypatch.setattr(solver, "march", second_fails_once)
    AIRFOILS.fill(tmp_path, sizes={"train": 3})
    assert np.load(tmp_path / "train_draws.npy").tolist() == [1, 2, 1]
    one, other = (np.load(root / "train_Y.npy") for root in (tmp_path, finished))
    assert (one != other).any(axis=(1, 2)).tolist() == [False, True, False]


def test_a_fold_in_a_grid_is_reported_with_its_sample(serial, tmp_path):
    def folded(rngs, resolution, device):
        nodes = torch.from_numpy(solver.airfoil_nodes(np.zeros(8), resolution))[None]
        solver.solve_airfoil(nodes.flip(2))

    with pytest.raises(UserError, match=r"^train sample 0: the grid folds over itself"):
        AIRFOILS.fill(tmp_path, replace(generate_airfoil, make_batch=folded))


def test_published_files_with_other_samples_are_not_trained_on(published, monkeypatch):
    monkeypatch.setitem(FILES.published_sizes, "samples", 2490)
    expected = r"NACA_Cylinder_X.npy: X has shape \(7, 45, 11\); the published file has \(2490, 45, 11\)"
    with pytest.raises(UserError, match=expected):
        AIRFOILS.open(published)


def test_the_registry_and_the_recipes_carry_the_published_protocol():
    usual = DATASETS["airfoil"].config.make({})
    assert (usual.train, usual.test, usual.stride, DATASETS["airfoil"].resolution) == (1000, 200, 1, 221)
    assert generate_airfoil.shapes(221)["Q"] == (5, 221, 51)
    ours, theirs = (RECIPES[f"airfoil/{name}"]() for name in ("linearno", "transolver"))
    assert (ours.training.clip, theirs.training.clip) == (1.0, 0.1)
    for recipe in (ours, theirs):
        training = recipe.training
        assert (training.batch, training.weight_decay, training.schedule, training.epochs) == (
            4,
            1e-5,
            "onecycle",
            500,
        )
        assert (recipe.model.slices, recipe.model.width, recipe.model.mlp_ratio) == (64, 128, 1)
        assert (training.precision, training.loss.gradient_weight) == ("bf16", 0)
