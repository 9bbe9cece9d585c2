"""The page of several benchmarks: a card for each run, whatever it was asked."""

import numpy as np
import pytest

from linearno.report import GalleryCard, gallery, write_gallery, write_strips
from linearno.report.run_folder import read_run


def show(folder, title="Some flow"):
    name = folder.name
    return GalleryCard(
        name, title, "What is asked.", folder, folder.parent / name / "report.html", solver_seconds=12.3
    )


def test_a_card_says_what_was_reached_and_how_long_it_took(make_run, tmp_path):
    folder = make_run(tmp_path / "darcy")
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    page = (tmp_path / "index.html").read_text()
    assert "mean relative L2, test split, 50 samples" in page
    assert "than the mean-field baseline, 0.412" in page
    assert "solved in 12.3 s" in page
    assert "trained in 71.5 s" in page
    assert 'href="darcy/report.html"' in page
    assert page.count("<img") == 1


def test_a_rollout_shows_its_last_frame_and_moves(make_rollout, tmp_path):
    folder = make_rollout(tmp_path / "ns")
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    page = (tmp_path / "index.html").read_text()
    assert "The test sample with the median error. Last frame." in page
    assert "data:image/png" in page
    assert "data:image/gif" in page


def test_points_that_move_are_shown_at_the_places_that_truth_and_prediction_give(
    make_timed, monkeypatch, tmp_path
):
    drawn, write = [], gallery.png_bytes
    monkeypatch.setattr(gallery, "png_bytes", lambda figure: drawn.append(figure) or write(figure))
    folder = make_timed(tmp_path / "plasticity")
    write_strips(tmp_path, [show(folder)])
    targets = read_run(folder, "").cases.targets[1][:, -3:-1]  # x and y of the last frame
    for axes, factor in zip(drawn[0].axes[:3], (1.0, 1.01, 1.0), strict=True):  # truth, prediction, error
        places = axes.collections[0].get_coordinates().reshape(-1, 2)
        np.testing.assert_allclose(places, factor * targets, rtol=1e-5, atol=1e-6)
        assert axes.get_xlim() == pytest.approx((-0.2, 10.2))  # that of the truth, with a little room
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    assert "at their true or predicted positions" in (tmp_path / "index.html").read_text()


def test_a_completion_is_judged_by_its_own_error(make_completion, tmp_path):
    folder = make_completion(tmp_path / "burgers")
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    assert "mean relative MAE" in (tmp_path / "index.html").read_text()


def test_what_is_missing_or_went_wrong_is_said_and_escaped(tmp_path):
    write_gallery(tmp_path / "index.html", [], {"Pipe flow": "u < 0 & worse"})
    page = (tmp_path / "index.html").read_text()
    assert "<strong>Pipe flow</strong>: u &lt; 0 &amp; worse" in page
    assert "<article" not in page


def test_pictures_are_named_by_the_benchmark_and_small(make_run, tmp_path):
    shown = [show(make_run(tmp_path / name)) for name in ("darcy", "pipe")]
    paths = write_strips(tmp_path / "figures", shown)
    assert [path.name for path in paths] == ["darcy.png", "pipe.png"]
    assert all(path.stat().st_size < 150_000 for path in paths)
