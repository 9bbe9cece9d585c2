"""Runs that march in time and runs that complete a field: from disk to a number, and back as a bundle."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linearno import load
from linearno.cli.predict import _step_names
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.experiment import evaluate
from linearno.initialization import open_splits
from linearno.metrics import relative_l2, relative_mae
from linearno.run_folder import open_run
from linearno.training.predict import evaluation_draw
from tests.commands import linearno, refused

CPU = torch.device("cpu")


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_the_error_of_a_rollout_is_that_of_all_frames_with_predictions_fed_back(marched):
    bundle, splits, metrics = load(marched), open_splits(open_run(marched).data), metrics_of(marched)
    rolled = bundle.predict(splits.test.inputs)
    with torch.no_grad():
        raw = bundle.model.rollout(splits.test.everything().coords, splits.test.inputs, 10)
    torch.testing.assert_close(rolled, raw, rtol=1e-4, atol=1e-5)
    assert metrics["metric"] == "relative_l2"
    errors = relative_l2(rolled, splits.test.targets)
    assert metrics["relative_l2"]["mean"] == pytest.approx(errors.mean().item(), rel=1e-4)
    frames = [relative_l2(rolled[..., t], splits.test.targets[..., t]).mean().item() for t in range(10)]
    assert metrics["relative_l2_by_frame"] == pytest.approx(frames, rel=1e-4)


def test_a_bundle_predicts_the_requested_number_of_steps(marched):
    bundle, splits = load(marched), open_splits(open_run(marched).data)
    far = bundle.predict(splits.test.inputs, steps=14)
    assert far.shape == (3, 64, 14)
    torch.testing.assert_close(far[..., :10], bundle.predict(splits.test.inputs))


def test_predict_writes_as_many_frames_as_are_requested(marched, tmp_path):
    splits = open_splits(open_run(marched).data)
    first = {f"w{t + 1}": splits.test.inputs[0, :, t].reshape(8, 8).numpy() for t in range(10)}
    np.savez(tmp_path / "first.npz", **first)
    code, output = linearno("predict", marched, tmp_path / "first.npz", "-o", tmp_path / "a.npz")
    assert code == 0, output
    code, output = linearno(
        "predict", marched, tmp_path / "first.npz", "--steps", "12", "-o", tmp_path / "b.npz"
    )
    assert code == 0, output
    with np.load(tmp_path / "a.npz") as usual, np.load(tmp_path / "b.npz") as long:
        assert list(usual) == [f"w{t}" for t in range(11, 21)]
        assert list(long) == [f"step{t}" for t in range(1, 13)]
        np.testing.assert_allclose(long["step10"], usual["w20"], rtol=1e-5, atol=1e-6)


def test_steps_of_several_channels_are_named_by_step_and_channel():
    assert _step_names(3, frame=1) == ["step1", "step2", "step3"]
    assert _step_names(4, frame=2) == ["step1_1", "step1_2", "step2_1", "step2_2"]


def test_the_error_of_a_completion_is_the_relative_mae_with_points_drawn_for_each_sample(completed):
    bundle, splits, metrics = load(completed), open_splits(open_run(completed).data), metrics_of(completed)
    assert metrics["metric"] == "relative_mae"
    told = []
    for place in range(3):
        drawn = evaluation_draw(bundle.task, 128, bundle.seed, place)
        assert len(drawn) == 25  # a fifth of 128
        seen = splits.test.targets[place : place + 1, drawn]
        told.append(bundle.encode(splits.test.coords[drawn], seen).query(splits.test.coords))
    errors = relative_mae(torch.cat(told), splits.test.targets)
    assert metrics["relative_mae"]["mean"] == pytest.approx(errors.mean().item(), rel=1e-4)
    with np.load(completed / "figures" / "cases.npz") as cases:
        assert cases["observed"].shape == (3, 25)
        worst = int(cases["sample"][2])
        assert cases["observed"][2].tolist() == evaluation_draw(bundle.task, 128, 0, worst).tolist()


def test_a_case_keeps_the_observations_that_its_prediction_was_made_from(completed, tmp_path):
    """Also where a batch of samples shares them: of three, the first two."""
    config, bundle = override(open_run(completed), ["training.eval_batch=2"]), load(completed)
    evaluate(bundle, config, open_splits(config.data), tmp_path)
    with np.load(tmp_path / "figures" / "cases.npz") as cases:
        assert sorted(cases["sample"]) == [0, 1, 2]
        names = ("coords", "targets", "observed", "predictions")
        for coords, truth, seen, told in zip(*(torch.from_numpy(cases[name]) for name in names), strict=True):
            field = bundle.encode(coords[seen], truth[None, seen])
            torch.testing.assert_close(field.query(coords)[0], told, rtol=1e-4, atol=1e-5)


def test_evaluating_a_completion_again_gives_the_same_number(completed, tmp_path):
    config = open_run(completed)
    again = evaluate(load(completed), config, open_splits(config.data), tmp_path)
    assert again["relative_mae"] == metrics_of(completed)["relative_mae"]


def test_predict_completes_a_field_from_observations_in_a_file(completed, tmp_path):
    bundle = load(completed)
    coords, values = bundle.coords[::7], torch.linspace(-1, 1, 19)
    np.savez(tmp_path / "seen.npz", coords=coords.numpy(), **{"u observed": values.numpy()})
    code, output = linearno("predict", completed, tmp_path / "seen.npz", "-o", tmp_path / "u.npz")
    assert code == 0, output
    with np.load(tmp_path / "u.npz") as answer:
        expected = bundle.encode(coords, values[None, :, None]).query(bundle.coords)
        np.testing.assert_allclose(answer["u"], expected.reshape(8, 16).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "change", "complaint"),
    [
        ("burgers20/linearno", "task.ratio=0.001", "leaves none to observe"),
        ("burgers20/linearno", "task.ratio=1.5", "task.ratio"),
        ("burgers20/linearno", "task.name=rollout", "task"),
        ("burgers20/linearno", "training.loss.gradient_weight=0.1", "kind=mse has no gradient term"),
        ("burgers20/linearno", "training.points=4", "ratio=0.2 of 4 points leaves none to observe"),
        ("ns/linearno", "training.points=40", "a model tied to a grid needs it whole"),
        ("ns/linearno", "task.channels=3", "10 inputs are not frames of 3 channels"),
        ("ns/linearno", "data.frames_out=30", "holds 20 frames"),
        ("ns/linearno", "task.forcing=student", "task.forcing"),
    ],
)
def test_a_run_that_cannot_be_is_named_in_one_line_and_leaves_nothing(
    recipe, change, complaint, marched, completed, tmp_path
):
    known = open_run(marched if recipe.startswith("ns") else completed).data
    changes = [f"data.root={known.root}", "data.train=6", "data.test=3", change]
    sets = [word for each in changes for word in ("--set", each)]
    said = refused("train", recipe, *sets, "--out", tmp_path / "run", "--device", "cpu")
    assert complaint in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"coords": np.zeros((0, 2)), "u observed": np.zeros(0)}, "is empty"),
        ({"coords": np.zeros((3, 2)), "u observed": np.full(3, np.nan)}, "NaN"),
        ({"coords": np.zeros((3, 2)), "u observed": np.zeros(4)}, "3 points in coords, 4"),
        ({"u observed": np.zeros(4)}, "coords"),
    ],
)
def test_observations_that_tell_nothing_are_refused(completed, tmp_path, arrays, complaint):
    np.savez(tmp_path / "seen.npz", **arrays)
    said = refused("predict", completed, tmp_path / "seen.npz", "-o", tmp_path / "u.npz")
    assert complaint in said
    assert not (tmp_path / "u.npz").exists()


def test_steps_belong_to_models_that_march_in_time(completed, tiny_run):
    with pytest.raises(UserError, match="does not march in time"):
        load(tiny_run).predict(torch.zeros(1, 81, 1), steps=3)
    with pytest.raises(UserError, match="does not march in time"):
        load(completed).predict(torch.zeros(1, 9, 1), torch.rand(9, 2), steps=3)
    with pytest.raises(UserError, match="observations"):
        load(completed).predict()


def test_a_rollout_is_animated_step_by_step(marched, tmp_path):
    code, output = linearno("animate", marched, "-o", tmp_path / "worst.gif", "--case", "worst", "--fps", "2")
    assert code == 0, output
    assert "10 frames" in output
    with Image.open(tmp_path / "worst.gif") as film:
        assert film.n_frames == 10
        assert film.info["duration"] == 500


def test_only_rollouts_are_animated(marched, completed, tmp_path):
    assert "is not a rollout" in refused("animate", completed, "-o", tmp_path / "film.gif")
    assert "ends in .gif or .mp4" in refused("animate", marched, "-o", tmp_path / "film.png")
    assert linearno("animate", marched, "--case", "middle")[0] == 2
    assert not list(tmp_path.iterdir())


def test_one_page_reports_both_kinds_each_by_its_own_error(marched, completed, tmp_path):
    code, output = linearno("report", marched, completed, "-o", tmp_path / "page.html")
    assert code == 0, output
    page = (tmp_path / "page.html").read_text()
    for words in (
        "Error over time",
        "data:image/gif",
        "25 observed values of 128",
        "relative MAE",
        "w11 to w20",
    ):
        assert words in page, words
