from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import DATASETS, Scaler
from linearno.data.generation.card import read_card
from linearno.data.pipe import generate_pipe
from linearno.recipes import RECIPES
from linearno.solvers import pipe as solver
from tests.data.curved_sets import PIPES, SIZES
from tests.data.files import edit


@pytest.fixture
def finished(finished_pipe) -> Path:
    """3 + 2 pipes at 9×9, to be read only."""
    return finished_pipe


@pytest.fixture
def published(finished, tmp_path) -> Path:
    """The same five pipes under the published names, in float64: train, two more, test."""
    return PIPES.publish(finished, tmp_path / "published")


def test_the_set_on_disk_has_the_published_fields_and_which_draw_was_kept(finished):
    card = read_card(finished, how="")
    assert {name: facts.shape for name, facts in card.files.items() if name.startswith("train")} == {
        "train_X.npy": (3, 9, 9),
        "train_Y.npy": (3, 9, 9),
        "train_Q.npy": (3, 3, 9, 9),
        "train_draws.npy": (3,),
    }
    assert (card.name, card.resolution) == ("pipe", 9)
    assert np.load(finished / "train_draws.npy").tolist() == [1, 1, 1]
    assert PIPES.verify(finished) == []


def test_points_run_across_the_pipe_and_then_along_it_with_the_speed_there(finished):
    train, test, source = PIPES.open(finished)
    x, y, q = (np.load(finished / f"train_{field}.npy") for field in "XYQ")
    for k in range(81):
        i, j = divmod(k, 9)
        assert train.coords[1, k].tolist() == [x[1, i, j], y[1, i, j]]
        assert train.targets[1, k].item() == q[1, 0, i, j]
    assert (train.coords.shape, train.inputs, test.targets.shape) == ((3, 81, 2), None, (2, 81, 1))
    assert (train.spec.coords, train.spec.inputs, train.spec.outputs) == (("x", "y"), (), ("ux",))
    assert (train.spec.grid, train.spec.standardised) == ((9, 9), ("coords", "outputs"))
    assert "seed 0, resolution 9" in source


def test_coordinates_and_speed_are_scaled_by_the_training_split(finished):
    train = PIPES.open(finished).train
    scaler = Scaler.fit(train.spec, train.everything())
    encoded = scaler.coords.encode(train.coords).flatten(0, 1)
    torch.testing.assert_close(encoded.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(encoded.std(dim=0), torch.ones(2), rtol=0, atol=1e-5)
    assert scaler.outputs.std.item() == pytest.approx(train.targets.std().item(), rel=1e-5)


def test_fewer_points_can_be_requested(finished):
    train, _, _ = PIPES.open(finished, stride=4)
    q = np.load(finished / "train_Q.npy")
    np.testing.assert_array_equal(train.targets.reshape(3, 3, 3), q[:, 0, ::4, ::4])
    with pytest.raises(UserError, match=r"stride=3 does not fit .*these do: 1, 2, 4, 8"):
        PIPES.open(finished, stride=3)


@pytest.mark.parametrize(("test_split", "first"), [("last200", 5), ("next200", 3)])
def test_published_files_are_tested_on_where_the_config_says(published, test_split, first):
    speed = np.load(published / "Pipe_Q.npy")[:, 0].reshape(7, -1).astype(np.float32)
    train, test, source = PIPES.open(published, test_split=test_split)
    np.testing.assert_array_equal(test.targets[..., 0], speed[first : first + 2])
    np.testing.assert_array_equal(train.targets[..., 0], speed[:3])
    assert test.targets.dtype == test.coords.dtype == torch.float32
    assert source == (
        f"published files Pipe_X.npy, Pipe_Y.npy, Pipe_Q.npy in {published}, "
        f"tested on samples {first} to {first + 1}"
    )
    assert PIPES.verify(published) == []


def test_published_files_hold_what_a_generated_set_holds(published, finished):
    for split in SIZES:
        one, other = getattr(PIPES.open(finished), split), getattr(PIPES.open(published), split)
        torch.testing.assert_close(one.coords, other.coords, rtol=0, atol=0)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=0)


def test_only_requested_arrays_are_read_of_a_published_file(published):
    """Channels beside the speed and samples of no split may be broken, until `verify` looks."""
    edit(published / "Pipe_Q.npy", (0, 2, 0, 0), np.nan)
    edit(published / "Pipe_Q.npy", (4, 0, 0, 0), np.nan)
    PIPES.open(published)
    assert PIPES.verify(published) == [
        f"{published}/Pipe_Q.npy: Q: sample 0 has NaN or infinite values; fetch the file again"
    ]


def test_an_unknown_place_of_the_test_is_refused(tmp_path):
    with pytest.raises(UserError, match="test_split"):
        PIPES.config(tmp_path, test_split="first200")


def test_a_pipe_that_is_drawn_again_keeps_its_number_and_leaves_the_others_alone(
    serial, finished, tmp_path, monkeypatch
):
    solve, calls = solver._newton, []

    def second_pipe_fails_once(*args):
        calls.append(1)
        flow, solved = solve(*args)
        return flow, solved & (len(calls) != 2)

    monkeypatch.setattr(solver, "_newton", second_pipe_fails_once)
    PIPES.fill(tmp_path)
    assert np.load(tmp_path / "train_draws.npy").tolist() == [1, 2, 1]
    one, other = (np.load(root / "train_Y.npy") for root in (tmp_path, finished))
    changed = (one != other).any(axis=(1, 2)).tolist()
    assert changed == [False, True, False]


def test_the_registry_and_the_recipes_carry_the_published_protocol():
    usual = DATASETS["pipe"].config.make({})
    assert (usual.train, usual.test, usual.stride, DATASETS["pipe"].resolution) == (1000, 200, 1, 129)
    assert generate_pipe.shapes(129)["Q"] == (3, 129, 129)
    ours, theirs = (RECIPES[f"pipe/{name}"]() for name in ("linearno", "transolver"))
    assert (ours.data.test_split, theirs.data.test_split) == ("last200", "next200")
    assert (ours.training.batch, ours.training.clip, ours.model.mlp_ratio) == (4, 1.0, 1)
    assert (theirs.training.batch, theirs.training.clip, theirs.model.mlp_ratio) == (8, 0.1, 2)
    for recipe in (ours, theirs):
        training = recipe.training
        assert (training.weight_decay, training.schedule, training.epochs) == (1e-5, "onecycle", 500)
        assert (training.precision, training.checkpoint_seconds, training.loss.gradient_weight) == (
            "bf16",
            30,
            0,
        )
