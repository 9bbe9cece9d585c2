"""Pages on runs that march in time and on runs that complete a field."""

import json
import re
from base64 import b64decode
from importlib import import_module
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from linearno.core.errors import UserError
from linearno.report import plots as pictures
from linearno.report import write_report
from linearno.report.cases import animation, cases, rollout_case, shown_channels
from linearno.report.page import page
from linearno.report.plots import over_time
from linearno.report.run_folder import read_runs
from linearno.report.summary import task


def alts(markup: str) -> list[str]:
    return re.findall(r'alt="([^"]*)"', markup)


def gifs(markup: str) -> list[bytes]:
    return [b64decode(body) for body in re.findall(r'src="data:image/gif;base64,([^"]*)"', markup)]


def drawn(monkeypatch, module: str, function: str) -> list:
    """What reaches a function that draws, call by call."""
    room = import_module(module)
    calls, draw = [], getattr(room, function)

    def listen(what, **more):
        calls.append(what)
        return draw(what, **more)

    monkeypatch.setattr(room, function, listen)
    return calls


def test_a_rollout_shows_first_middle_and_last_frame_after_the_last_known_one(make_rollout, tmp_path):
    run = read_runs([make_rollout(tmp_path / "ns")])[0]
    words = cases(run)
    assert len(alts(words)) == 3
    assert "input w2; truth, prediction and absolute error of frames from w3 to w7" in alts(words)[0]
    assert "Of 5 outputs" not in words


def test_of_frames_with_several_channels_the_first_is_drawn(make_rollout, tmp_path):
    run = read_runs([make_rollout(tmp_path / "ns", channels=2)])[0]
    case = rollout_case(run, 1)
    assert case.known_name == "w2.0"
    assert case.names == ("w3.0", "w4.0", "w5.0", "w6.0", "w7.0")
    np.testing.assert_array_equal(case.known, run.cases.inputs[1][:, 2])
    np.testing.assert_array_equal(case.truth, run.cases.targets[1][:, [0, 2, 4, 6, 8]])


def test_frames_by_their_time_are_drawn_where_the_points_are_and_are_predicted(make_timed, tmp_path):
    run = read_runs([make_timed(tmp_path / "forged")])[0]
    assert shown_channels(run) == [2]
    case = rollout_case(run, 1, 2)
    np.testing.assert_array_equal(case.truth, run.cases.targets[1][:, 2::3])
    np.testing.assert_array_equal(case.coords_at(3), run.cases.targets[1][:, 9:11])
    np.testing.assert_array_equal(case.coords_at(3, predicted=True), run.cases.predictions[1][:, 9:11])
    np.testing.assert_array_equal(case.known, run.cases.inputs[1][:, 0])
    assert (case.axis_labels, case.label, case.known_label) == (("x (mm)", "y (mm)"), "w (mm)", "die (mm)")
    words = cases(run)
    assert len(alts(words)) == 3
    assert "input die; truth, prediction and absolute error of frames from w0 to w4" in alts(words)[0]
    assert "at their true or predicted positions" in words
    assert "last known frame" not in words
    assert "time-conditioned: 5 frames" in task(run)
    assert animation(run) is not None


def test_slices_of_points_that_move_are_drawn_where_they_are_in_the_end(make_timed, tmp_path):
    run = read_runs([make_timed(tmp_path / "forged")])[0]
    np.testing.assert_array_equal(run.cases.points(2), run.cases.targets[2][:, -3:-1])


def test_the_curve_over_time_carries_the_numbers_of_each_run(make_rollout, make_run, tmp_path, monkeypatch):
    folders = [
        make_run(tmp_path / "darcy"),
        make_rollout(tmp_path / "a"),
        make_rollout(tmp_path / "b", frames=7),
    ]
    calls = drawn(monkeypatch, "linearno.report.plots", "error_over_time_figure")
    assert over_time(read_runs(folders)) is not None
    assert [(each.name, each.color) for each in calls[0]] == [("a", 1), ("b", 2)]
    for each, folder in zip(calls[0], folders[1:], strict=True):
        metrics = json.loads((folder / "metrics.json").read_text())
        np.testing.assert_allclose(each.errors, metrics["relative_l2_by_frame"])


def test_frames_requested_by_their_time_follow_no_known_one(make_timed, tmp_path, monkeypatch):
    figures = []
    draw = pictures.error_over_time_figure
    monkeypatch.setattr(
        pictures, "error_over_time_figure", lambda *a, **k: figures.append(draw(*a, **k)) or figures[-1]
    )
    assert over_time(read_runs([make_timed(tmp_path / "forged")])) is not None
    assert figures[0].axes[0].get_xlabel() == "frame"


@pytest.mark.slow
def test_the_median_rollout_moves_inside_the_page(make_rollout, tmp_path):
    run = read_runs([make_rollout(tmp_path / "ns", frames=6)])[0]
    (film,) = gifs(page([run]))
    with Image.open(BytesIO(film)) as image:
        assert image.format == "GIF"
        assert image.n_frames == 6
    assert "Median case: test sample 31 of ns, moving" in alts(animation(run))[0]


def test_a_film_too_large_for_a_page_is_only_named(make_rollout, tmp_path, monkeypatch):
    monkeypatch.setattr("linearno.report.cases.MAX_ANIMATION_BYTES", 100)
    words = animation(read_runs([make_rollout(tmp_path / "ns")])[0])
    assert not gifs(words)
    assert "linearno animate" in words


def test_runs_that_do_not_march_have_no_film_and_no_curve_over_time(make_run, make_completion, tmp_path):
    runs = read_runs([make_run(tmp_path / "darcy"), make_completion(tmp_path / "burgers")])
    assert over_time(runs) is None
    assert [animation(run) for run in runs] == [None, None]


@pytest.mark.parametrize("kind", ["rollout", "completion"])
def test_a_run_without_cases_is_reported_as_far_as_it_went(make_rollout, make_completion, tmp_path, kind):
    make = {"rollout": make_rollout, "completion": make_completion}[kind]
    folder = make(tmp_path / "half")
    (folder / "figures" / "cases.npz").unlink()
    text = page(read_runs([folder]))
    assert "no figures/cases.npz" in text
    assert not gifs(text)


def test_a_completion_shows_what_was_observed_over_space_and_time(make_completion, tmp_path, monkeypatch):
    calls = drawn(monkeypatch, "linearno.report.cases", "case_figure")
    run = read_runs([make_completion(tmp_path / "burgers")])[0]
    words = cases(run)
    assert "input 11 observed values of 63" in alts(words)[0]
    assert len(calls) == 3
    for place, case in enumerate(calls):
        np.testing.assert_array_equal(case.observed, run.cases.observed[place])
        assert case.over_time
        assert case.axis_labels == ("x", "t")


def test_the_error_that_counts_has_its_own_name_everywhere(make_completion, tmp_path):
    run = read_runs([make_completion(tmp_path / "burgers")])[0]
    np.testing.assert_allclose(run.errors[:2], [0.03, 0.031])
    text = page([run])
    for words in (
        "mean relative MAE, test split",
        "Relative MAE, median",
        "Mean-field baseline, relative MAE",
        "Histogram of the relative MAE of burgers",
        "largest relative MAE (test split",
        "relative MAE 0.094",
        "field reconstruction from 20 % of the points",
    ):
        assert words in text, words
    assert "0.0321" in text
    assert "Relative L2, mean" in text  # the other error stays in the table
    assert "Histogram of the relative L2" not in text


def test_runs_judged_by_different_errors_get_a_histogram_each(make_completion, make_rollout, tmp_path):
    text = page(read_runs([make_completion(tmp_path / "burgers"), make_rollout(tmp_path / "ns")]))
    found = [alt for alt in alts(text) if alt.startswith("Histogram")]
    assert found == ["Histogram of the relative MAE of burgers", "Histogram of the relative L2 of ns"]


def test_an_old_folder_that_names_neither_task_nor_error_is_judged_by_relative_l2(make_run, tmp_path):
    folder = make_run(tmp_path / "old")
    assert "metric" not in json.loads((folder / "metrics.json").read_text())
    run = read_runs([folder])[0]
    assert (run.task.name, run.metric) == ("direct", "relative_l2")
    text = page([run])
    assert "mean relative L2, test split" in text
    assert "relative MAE" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observed": np.full((3, 4), 63)}, "observed points are not all among the 63"),
        ({"observed": np.zeros((2, 4), dtype=int)}, "observed has shape (2, 4), expected (3, 4)"),
    ],
)
def test_observed_points_that_do_not_fit_are_named(make_completion, tmp_path, change, message):
    folder = make_completion(tmp_path / "burgers")
    path = folder / "figures" / "cases.npz"
    with np.load(path) as disk:
        arrays = dict(disk) | change
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=re.escape(message)):
        read_runs([folder])


@pytest.mark.parametrize("wrong", [["a"], [[1, 2]], {"w11": 0.1}])
def test_errors_by_frame_that_are_no_numbers_are_named(make_rollout, tmp_path, wrong):
    folder = make_rollout(tmp_path / "ns")
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics | {"relative_l2_by_frame": wrong}))
    with pytest.raises(UserError, match=r"metrics\.json: relative_l2_by_frame"):
        write_report([folder], tmp_path / "page.html")
