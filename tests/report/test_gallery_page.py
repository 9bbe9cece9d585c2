"""The page of several benchmarks: a card for each run, whatever it was asked."""

from linearno.report import Shown, write_gallery, write_strips


def show(folder, title="Some flow"):
    name = folder.name
    return Shown(name, title, "What is asked.", folder, folder.parent / name / "report.html", solving=12.3)


def test_a_card_says_what_was_reached_and_how_long_it_took(make_run, tmp_path):
    folder = make_run(tmp_path / "darcy")
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    page = (tmp_path / "index.html").read_text()
    assert "mean relative L2 (dimensionless), test split, 50 samples" in page
    assert "than the mean-field baseline, 0.412" in page
    assert "solved in 12.3 s" in page
    assert "trained in 71.5 s" in page
    assert 'href="darcy/report.html"' in page
    assert page.count("<img") == 1


def test_a_rollout_shows_its_last_frame_and_moves(make_rollout, tmp_path):
    folder = make_rollout(tmp_path / "ns")
    write_gallery(tmp_path / "index.html", [show(folder)], {})
    page = (tmp_path / "index.html").read_text()
    assert "The median unseen sample. Last frame." in page
    assert "data:image/png" in page
    assert "data:image/gif" in page


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
