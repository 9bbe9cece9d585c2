import json

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.report import write_report
from linearno.report.run_folder import read_runs


def refused(folders) -> str:
    """The one line that refuses them."""
    with pytest.raises(UserError) as caught:
        read_runs(folders)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite_cases(folder, **changes):
    path = folder / "figures" / "cases.npz"
    with np.load(path) as disk:
        arrays = dict(disk) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_everything_in_a_folder_is_read(two_runs):
    run = read_runs(two_runs)[0]
    assert run.name == "darcy-linearno"
    assert run.metrics["samples"] == len(run.errors) == 50
    assert [record.epoch for record in run.history] == list(range(1, 21))
    assert run.cases.slices.bound == 5
    assert run.cases.spec.unit("sol") == "Pa"


def test_a_folder_that_is_no_run_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "neither config.yaml nor model.json" in refused([tmp_path / "empty"])
    assert "does not exist" in refused([tmp_path / "absent"])
    assert "at least one" in refused([])
    with pytest.raises(UserError):
        write_report([tmp_path / "empty"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_another_format_is_refused(make_run, tmp_path):
    folder = make_run(tmp_path / "new")
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | {"format": 2}))
    assert "has format 2, this version reads format 1" in refused([folder])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.json", "{"),
        ("metrics.json", "[1]"),
        ("config.yaml", "a: &a [1]\nb: *a"),
        ("config.yaml", "a: [1"),
        ("config.yaml", "just words"),
        ("per_sample.csv", "sample,error\n0,1\n"),
        ("per_sample.csv", "sample,relative_l2\n0,good\n"),
        ("figures/cases.npz", "PK\x03\x04 cut short"),
        ("figures/cases.npz", ""),
    ],
)
def test_a_damaged_file_is_named(make_run, tmp_path, name, content):
    folder = make_run(tmp_path / "run")
    (folder / name).write_text(content)
    assert str(folder / name) in refused([folder])


def test_a_line_of_history_that_a_kill_cut_short_is_left_out(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    text = (folder / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text(text[:-30])
    assert len(read_runs([folder])[0].history) == 19


def test_arrays_that_do_not_fit_are_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    rewrite_cases(folder, predictions=np.zeros((3, 63, 2)))
    assert "predictions has shape (3, 63, 2), expected (3, 63, 1)" in refused([folder])
    rewrite_cases(folder, predictions=None)
    assert "lacks the array 'predictions'" in refused([folder])


def test_pickled_arrays_are_refused(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    rewrite_cases(folder, sample=np.array([{}, {}, {}], dtype=object))
    assert "allow_pickle" in refused([folder])


def test_points_that_do_not_fill_the_grid_are_refused(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    card = json.loads((folder / "model.json").read_text())
    card["spec"]["grid"] = [9, 8]
    (folder / "model.json").write_text(json.dumps(card))
    assert "63 points do not fill the grid (9, 8)" in refused([folder])
