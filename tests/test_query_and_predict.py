"""Rollout and reconstruction models queried at other points and with other data than in training."""

import csv
import logging

import numpy as np
import pytest
import torch
from scipy.io import savemat

from linearno import load
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.experiment import evaluate
from linearno.initialization import open_splits
from linearno.run_folder import open_run
from tests.commands import linearno, refused

PLACES = torch.tensor([[0.1, 0.3], [0.5, 0.5], [0.9, 0.7]])


@pytest.fixture
def seen(completed):
    """Coordinates and values of 40 points of two test samples."""
    test = open_splits(open_run(completed).data).test
    drawn = torch.randperm(128, generator=torch.Generator().manual_seed(0))[:40]
    return test.coords[drawn], test.targets[:2, drawn]


def rows_of(path):
    with path.open() as file:
        return list(csv.reader(file))


def test_a_field_is_queried_anywhere_from_observations_in_a_file(completed, seen, tmp_path):
    coords, values = seen
    np.savez(tmp_path / "seen.npz", coords=coords, **{"u observed": values[..., 0]})
    (tmp_path / "places.csv").write_text("t,x\n0.3,0.1\n0.5,0.5\n0.7,0.9\n")
    out = tmp_path / "values.csv"
    code, output = linearno(
        "query", completed, tmp_path / "seen.npz", "--points", tmp_path / "places.csv", "-o", out
    )
    assert code == 0, output
    head, *rows = rows_of(out)
    assert head == ["sample", "x", "t", "u"]
    asked = load(completed).encode(coords, values).query(PLACES)
    np.testing.assert_allclose(np.array(rows, dtype=float)[:, 3], asked.flatten(), rtol=1e-5)
    np.testing.assert_allclose(np.array(rows, dtype=float)[3:, 1:3], PLACES, rtol=1e-6)


def test_matlab_has_columns_and_no_spaces_in_names(completed, seen, tmp_path):
    coords, values = seen
    savemat(tmp_path / "seen.mat", {"coords": coords.numpy(), "u_observed": values[0].numpy()})
    np.savez(tmp_path / "places.npz", coords=PLACES)
    out = tmp_path / "values.csv"
    code, output = linearno(
        "query", completed, tmp_path / "seen.mat", "--points", tmp_path / "places.npz", "-o", out
    )
    assert code == 0, output
    assert rows_of(out)[0] == ["x", "t", "u"]
    asked = load(completed).encode(coords, values[:1]).query(PLACES)
    np.testing.assert_allclose([float(row[2]) for row in rows_of(out)[1:]], asked.flatten(), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x,y\n0,0\n", "expected the columns x,t with a number in every row"),
        ("x,t\n0,\n", "expected the columns x,t with a number in every row"),
        ("x,t\n", "holds no points"),
        ("x,t\n0,nan\n", "coords holds NaN or infinite values"),
    ],
)
def test_invalid_query_points_are_refused_and_nothing_is_written(completed, seen, tmp_path, text, complaint):
    np.savez(tmp_path / "seen.npz", coords=seen[0], u_observed=seen[1][..., 0])
    (tmp_path / "places.csv").write_text(text)
    words = refused(
        "query",
        completed,
        tmp_path / "seen.npz",
        "--points",
        tmp_path / "places.csv",
        "-o",
        tmp_path / "v.csv",
    )
    assert complaint in words
    assert not (tmp_path / "v.csv").exists()


def test_observations_outside_the_training_points_are_warned_of(completed, seen, caplog):
    with caplog.at_level(logging.WARNING):
        load(completed).encode(seen[0] + 5, seen[1])
    assert "40 of 40 observations lie outside the box of the training points" in caplog.text


def test_a_grid_in_another_order_is_warned_of(marched, caplog):
    bundle, frames = load(marched), open_splits(open_run(marched).data).test.inputs[:1]
    with caplog.at_level(logging.WARNING):
        bundle.predict(frames, bundle.coords + 1e-6)
        assert "grid" not in caplog.text
        bundle.predict(frames.flip(1), bundle.coords.flip(0))
    assert "not those of the grid that the model was trained on" in caplog.text


def test_a_rollout_that_runs_away_is_reported_with_its_first_step(marched, caplog):
    bundle, frames = load(marched), open_splits(open_run(marched).data).test.inputs
    frames = frames.clone()
    frames[1] = 3e38  # the next frame is no number any more
    with caplog.at_level(logging.WARNING):
        bundle.predict(frames)
    assert "predictions are NaN or infinite from step 1 on in 1 of 3 samples" in caplog.text


def test_a_run_evaluated_on_a_finer_grid_can_be_reported(completed, finer, tmp_path):
    config, bundle = open_run(completed), load(completed)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "model.json", "model.safetensors", "history.jsonl"):
        (folder / name).write_bytes((completed / name).read_bytes())
    evaluate(bundle, config, open_splits(override(config.data, [f"root={finer}"])), folder)
    code, output = linearno("report", folder, "-o", tmp_path / "page.html")
    assert code == 0, output


def test_a_model_tied_to_a_grid_names_the_settings_that_free_it(marched):
    frames = open_splits(open_run(marched).data).test.inputs
    with pytest.raises(UserError, match=r"build it with unified.place=coords"):
        load(marched).predict(frames, memory="1GB")


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        (
            {f"w{t}": np.zeros((8, 8)) for t in range(1, 10)},
            "holds 9 of the 10 fields that the model takes: w10",
        ),
        (
            {f"w{t}": np.zeros((8, 8), complex) for t in range(1, 11)},
            "w1 holds complex128 numbers; expected real",
        ),
    ],
)
def test_unusable_frames_are_reported(marched, tmp_path, arrays, complaint):
    np.savez(tmp_path / "first.npz", **arrays)
    assert complaint in refused("predict", marched, tmp_path / "first.npz", "-o", tmp_path / "a.npz")


def test_an_unwritable_output_is_refused_before_any_work(marched, tmp_path):
    words = refused("predict", marched, tmp_path / "none.npz", "-o", tmp_path / "a.csv")
    assert "a.csv: expected one of .npz, .mat" in words
