import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linearno.core.errors import UserError
from linearno.report import write_animation


def refused(*args, **more) -> str:
    with pytest.raises(UserError) as caught:
        write_animation(*args, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def first_frame(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def test_a_film_has_a_frame_for_each_step_and_keeps_time(make_rollout, tmp_path):
    out = tmp_path / "films" / "rollout.gif"
    assert write_animation(make_rollout(tmp_path / "ns", frames=4), out, fps=5.0) == 4
    with Image.open(out) as image:
        assert image.n_frames == 4
        assert image.info["duration"] == 200
        assert image.info["loop"] == 0
    assert list(out.parent.iterdir()) == [out]


def test_frames_by_their_time_make_a_film_too(make_timed, tmp_path):
    out = tmp_path / "forged.gif"
    assert write_animation(make_timed(tmp_path / "forged"), out) == 5
    with Image.open(out) as image:
        assert image.n_frames == 5


def test_the_case_requested_is_shown(make_rollout, tmp_path):
    folder = make_rollout(tmp_path / "ns", frames=2)
    for case in ("best", "median", "worst"):
        write_animation(folder, tmp_path / f"{case}.gif", case=case)
    best, median, worst = (first_frame(tmp_path / f"{case}.gif") for case in ("best", "median", "worst"))
    assert not np.array_equal(best, median)
    assert not np.array_equal(median, worst)


def test_what_cannot_be_animated_is_refused_in_one_line(make_run, make_rollout, make_completion, tmp_path):
    out, ns = tmp_path / "rollout.gif", make_rollout(tmp_path / "ns")
    assert "is not a rollout" in refused(make_run(tmp_path / "darcy"), out)
    assert "is not a rollout" in refused(make_completion(tmp_path / "burgers"), out)
    assert "ends in .gif or .mp4" in refused(ns, tmp_path / "rollout.avi")
    (ns / "figures" / "cases.npz").unlink()
    assert "linearno evaluate" in refused(ns, out)
    assert "does not exist" in refused(tmp_path / "nowhere", out)
    assert not out.exists()


def test_mp4_without_ffmpeg_is_refused_with_the_way_out(make_rollout, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "rollout.mp4"
    assert "use a name that ends in .gif" in refused(make_rollout(tmp_path / "ns"), out)
    assert not out.exists()


def pretend_ffmpeg(folder: Path, script: str, monkeypatch) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_ffmpeg_gets_every_pixel_of_every_frame(make_rollout, tmp_path, monkeypatch):
    """A stand-in that keeps its input and its words: the last of them is the file to write."""
    pretend_ffmpeg(tmp_path, f'echo "$@" > {tmp_path}/words; for out; do :; done; cat > "$out"', monkeypatch)
    out = tmp_path / "rollout.mp4"
    assert write_animation(make_rollout(tmp_path / "ns", frames=3), out, fps=2.5) == 3
    words = (tmp_path / "words").read_text().split()
    width, height = map(int, words[words.index("-s") + 1].split("x"))
    assert words[words.index("-r") + 1] == "2.5"
    assert out.stat().st_size == 3 * width * height * 3


def test_a_failure_of_ffmpeg_leaves_nothing_and_says_why(make_rollout, tmp_path, monkeypatch):
    pretend_ffmpeg(tmp_path, "cat > /dev/null; echo no such encoder >&2; exit 1", monkeypatch)
    (tmp_path / "out").mkdir()
    said = refused(make_rollout(tmp_path / "ns"), tmp_path / "out" / "rollout.mp4")
    assert "ffmpeg failed: no such encoder" in said
    assert not list((tmp_path / "out").iterdir())
