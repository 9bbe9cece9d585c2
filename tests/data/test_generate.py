import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from linearno.cli.data import app
from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.data.darcy import generate_darcy
from linearno.data.generation import generate as module
from linearno.data.generation.card import read_card
from linearno.data.generation.generate import DataGenerator
from linearno.data.generation.plan import describe_unfinished
from tests.data.toy_sets import SIZES, fill, interrupted_after, make, toy
from tests.patience import PATIENCE

FILES = [f"{split}_{field}.npy" for split in ("train", "test") for field in ("coeff", "sol")]


def fail(rng: np.random.Generator, resolution: int) -> dict[str, np.ndarray]:
    raise UserError("did not converge")


def living(session: int) -> list[str]:
    """Processes of a session that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(owner) == session and state != "Z":
            found.append(stat.parent.name)
    return found


def wait_until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


@pytest.mark.slow
def test_after_kill_9_a_resumed_set_has_the_bytes_of_an_uninterrupted_one_with_other_workers(tmp_path):
    sizes = {"train": 60, "test": 5}
    script = (
        "import time; from pathlib import Path\n"
        "from linearno.data.generation import generate; from linearno.data.darcy import generate_darcy\n"
        "generate.RECORD_SECONDS, slow = 0, lambda n: time.sleep(0.05)\n"
        f"generate_darcy(Path('cut'), sizes={sizes}, resolution=33, seed=3, workers=2, tick=slow)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, start_new_session=True)
    progress = tmp_path / "cut" / "progress.json"
    wait_until(lambda: progress.exists() and json.loads(progress.read_text())["done"] >= 5)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_until(lambda: not living(child.pid))  # no worker outlives its parent
    done = json.loads(progress.read_text())["done"]
    assert 5 <= done < 65
    assert not (tmp_path / "cut" / "card.json").exists()

    ticks: list[int] = []
    again = partial(generate_darcy, sizes=sizes, resolution=33, seed=3)
    again(tmp_path / "cut", workers=1, tick=ticks.append)
    assert ticks == [done] + [1] * (65 - done)  # nothing finished is made again
    again(tmp_path / "whole", workers=1, tick=lambda n: None)
    for name in FILES:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == sorted([*FILES, "card.json"])


def test_an_interrupted_folder_is_no_set_and_continues_with_what_it_has(serial, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "a", generator=interrupted_after(3))
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".part", ".json"}
    assert describe_unfinished(tmp_path / "a") == "its generation stopped after 3 of 6 samples"
    assert fill(tmp_path / "a") == [3, 1, 1, 1]
    fill(tmp_path / "b")
    assert read_card(tmp_path / "a", how="").files == read_card(tmp_path / "b", how="").files
    assert describe_unfinished(tmp_path / "a") is None


def test_a_stop_between_the_names_and_the_card_is_mended(serial, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_card", stop)
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path)
    assert fill(tmp_path) == [6]
    assert set(read_card(tmp_path, how="").files) == {"train_u.npy", "test_u.npy"}


def test_more_samples_only_append(serial, tmp_path):
    fill(tmp_path / "small")
    fill(tmp_path / "large", sizes={"train": 7, "test": 3})
    for split, count in SIZES.items():
        small, large = (np.load(tmp_path / name / f"{split}_u.npy") for name in ("small", "large"))
        np.testing.assert_array_equal(large[:count], small)


def test_splits_and_seeds_share_no_sample(serial, tmp_path):
    fill(tmp_path / "a")
    fill(tmp_path / "b", seed=1)
    samples = np.concatenate([np.load(path) for path in tmp_path.glob("*/*.npy")])
    assert len(np.unique(samples, axis=0)) == 12


@pytest.mark.parametrize("change", [{"seed": 1}, {"resolution": 6}, {"sizes": {"train": 5, "test": 2}}])
def test_other_settings_are_refused_in_a_finished_and_in_an_unfinished_folder(serial, tmp_path, change):
    fill(tmp_path / "finished")
    with pytest.raises(UserError, match=r"holds another set .*seed 0, resolution 5, train 4, test 2"):
        fill(tmp_path / "finished", **change)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "begun", generator=interrupted_after(3))
    with pytest.raises(UserError, match="started with seed 0, resolution 5, train 4, test 2"):
        fill(tmp_path / "begun", **change)


@pytest.mark.parametrize("change", [{"equation": "u = other noise"}, {"solver": "another"}])
def test_a_set_of_another_law_or_solver_is_neither_finished_nor_taken_for_this_one(serial, tmp_path, change):
    complaint = r"^\S+ was generated with another equation or solver; remove it, or choose another --out$"
    fill(tmp_path / "finished")
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "begun", generator=interrupted_after(3))
    for root in (tmp_path / "finished", tmp_path / "begun"):
        before = {path: path.read_bytes() for path in root.iterdir()}
        with pytest.raises(UserError, match=complaint):
            fill(root, generator=replace(toy(), **change))
        assert {path: path.read_bytes() for path in root.iterdir()} == before
    assert fill(tmp_path / "finished") == []
    assert fill(tmp_path / "begun") == [3, 1, 1, 1]


def test_the_words_of_a_scheme_are_part_of_the_solver(serial, tmp_path):
    def batch(rngs, resolution, device, scheme):
        return {"u": np.stack([make(rng, resolution)["u"] for rng in rngs])}

    generator = replace(toy(), make_batch=batch, schemes={"rk4": "of fourth order"})
    fill(tmp_path, generator=generator)
    assert read_card(tmp_path, how="").solver == "none; of fourth order"
    assert fill(tmp_path, generator=generator) == []
    with pytest.raises(UserError, match="was generated with another equation or solver"):
        fill(tmp_path, generator=replace(generator, schemes={"rk4": "of fourth order in time"}))


def test_a_set_begun_before_laws_were_recorded_is_not_finished_by_one_that_may_be_another(serial, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, generator=interrupted_after(3))
    record = json.loads((tmp_path / "progress.json").read_text())
    old = {name: record[name] for name in ("plan", "done", "device")}
    (tmp_path / "progress.json").write_text(json.dumps(old))
    with pytest.raises(UserError, match="was generated with another equation or solver"):
        fill(tmp_path)
    assert describe_unfinished(tmp_path) == "its generation stopped after 3 of 6 samples"


def test_a_set_of_another_law_is_one_line_and_exit_code_2_and_is_still_well(made, monkeypatch):
    def type_(*words):
        return CliRunner().invoke(app, [*map(str, words)])

    sizes = ("--train", 4, "--test", 2, "--resolution", 11, "--device", "cpu", "--out", made)
    assert "already complete" in type_("generate", "darcy", *sizes).output
    changed = replace(DATASETS["darcy"], generate=replace(generate_darcy, equation="another"))
    monkeypatch.setitem(DATASETS._entries, "darcy", changed)
    result = type_("generate", "darcy", *sizes)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {made} was generated with another equation or solver")
    assert result.stderr.count("\n") == 1
    assert "no problems found" in type_("verify", "darcy", "--root", made).output


def test_a_finished_folder_is_left_as_it_is(serial, tmp_path):
    fill(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert fill(tmp_path) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_the_card_says_what_is_there_and_how_it_was_made(serial, tmp_path):
    fill(tmp_path, seed=5)
    card = read_card(tmp_path, how="")
    assert (card.name, card.equation, card.units) == ("toy", "u = noise", {"u": "m"})
    assert (card.seed, card.resolution, card.sizes) == (5, 5, SIZES)
    assert card.files["train_u.npy"].shape == (4, 5)
    assert card.files["train_u.npy"].dtype == "float32"
    assert {"linearno", "numpy", "scipy"} <= set(card.versions)


def test_too_little_space_is_said_before_anything_is_written(serial, tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(UserError, match="free but the set needs"):
        fill(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_of_unknown_origin_is_not_overwritten(serial, tmp_path):
    (tmp_path / "train_u.npy").write_text("mine")
    with pytest.raises(UserError, match=r"train_u.npy exists but no card.json"):
        fill(tmp_path)
    assert (tmp_path / "train_u.npy").read_text() == "mine"


def test_two_processes_do_not_fill_one_folder(serial, tmp_path):
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process is writing to"):
        fill(tmp_path)
    os.close(other)
    assert len(fill(tmp_path)) == 6


def test_a_sample_that_cannot_be_made_is_named_with_a_remedy_and_nothing_stays(serial, tmp_path):
    remedy = "; another --seed draws others$"
    with pytest.raises(UserError, match="^train sample 0: did not converge" + remedy):
        fill(tmp_path / "a" / "b", generator=toy(fail))
    nan = "^train sample 0: the solver gave NaN or infinite values for u" + remedy
    with pytest.raises(UserError, match=nan):
        fill(tmp_path / "c", generator=toy(lambda rng, n: {"u": np.full(n, np.nan)}))
    assert not list(tmp_path.iterdir())  # nor the folders that were made


def test_a_failure_in_a_worker_process_leaves_nothing_either(tmp_path):
    with pytest.raises(UserError, match=r"^train sample 0: did not converge; another --seed draws others$"):
        fill(tmp_path / "set", generator=toy(fail))
    assert not list(tmp_path.iterdir())


def test_what_was_made_before_a_sample_that_cannot_be_is_kept(serial, tmp_path):
    remedy = r"finished samples stay in \S+: another --seed with another --out draws others"
    for count in (3, 0):  # the second time it fails at once
        with pytest.raises(UserError, match=f"^train sample 3: did not converge; {remedy}$"):
            fill(tmp_path, generator=interrupted_after(count, UserError("did not converge")))
    assert fill(tmp_path) == [3, 1, 1, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError, RuntimeError])
def test_a_stop_before_the_first_sample_leaves_nothing(serial, tmp_path, error):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    for root in (tmp_path / "set", mine):
        with pytest.raises((UserError, error)):
            fill(root, generator=interrupted_after(0, error))
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_a_disk_that_refuses_the_second_array_keeps_no_first_one(serial, tmp_path, monkeypatch):
    reserve, calls = module._reserve, iter(range(1))

    def full(path, shape):
        if next(calls, None) is None:
            raise UserError(f"cannot reserve {path}: No space left on device; choose another folder")
        reserve(path, shape)

    monkeypatch.setattr(module, "_reserve", full)
    with pytest.raises(UserError, match="cannot reserve"):
        fill(tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_a_refused_command_removes_nothing_of_a_set_that_was_begun(serial, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "_record_progress", lambda *_: None)  # as if killed before the first record
        patch.setattr(DataGenerator, "_finish", lambda *_: None)
        fill(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before == ["progress.json", "test_u.npy.part", "train_u.npy.part"]
    with pytest.raises(UserError, match="started with seed 0"):
        fill(tmp_path, seed=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert fill(tmp_path) == [1] * 6


def test_nonsense_is_refused_before_a_folder_is_filled(serial, tmp_path):
    for settings, complaint in (
        ({"workers": 0}, "workers=0"),
        ({}, "at least 5"),
        ({"sizes": {"train": 0, "test": 1}}, r"sizes\.train"),
    ):
        with pytest.raises(UserError, match=complaint):
            fill(tmp_path, generator=generate_darcy, resolution=4, **settings)
    assert not list(tmp_path.iterdir())
