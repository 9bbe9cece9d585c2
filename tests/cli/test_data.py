import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.io import savemat
from typer.testing import CliRunner

from linearno.cli.data import app
from linearno.core.errors import UserError
from linearno.data import DATASETS, DarcyConfig
from linearno.data.generation import generate as module
from tests.patience import PATIENCE

NO_GPU = not torch.cuda.is_available()


@pytest.fixture
def type_(monkeypatch):
    monkeypatch.setattr(module, "process_map", lambda work, jobs, workers: (work(job) for job in jobs))
    return lambda line: CliRunner().invoke(app, line.split())


def test_the_list_names_every_benchmark_and_its_folder(type_):
    result = type_("list")
    assert result.exit_code == 0
    assert "darcy" in result.output
    assert "data/darcy" in result.output
    assert "data/ns" in result.output
    assert "data/elasticity" in result.output


def test_a_set_is_made_checked_and_not_made_twice(type_, tmp_path):
    line = f"generate darcy --train 3 --test 2 --resolution 11 --out {tmp_path}"
    first = type_(line)
    assert first.exit_code == 0
    assert first.output.startswith(f"{tmp_path}: seed 0, resolution 11, train 3, test 2; generated in")
    assert first.output.endswith(" s (solved on cpu)\n")
    assert first.output.count("\n") == 1  # quiet where there is no terminal
    assert "already complete, nothing to do" in type_(line).output
    assert "no problems found" in type_(f"verify darcy --root {tmp_path}").output


def test_a_benchmark_with_a_validation_split_makes_it_too(type_, tmp_path):
    line = f"generate burgers --train 3 --test 2 --val 1 --resolution 8 --out {tmp_path}"
    result = type_(line)
    assert result.exit_code == 0
    assert "seed 0, resolution 8, train 3, test 2, val 1; generated in" in result.output
    assert "already complete, nothing to do" in type_(line).output
    assert "no problems found" in type_(f"verify burgers --root {tmp_path}").output
    (tmp_path / "val_u.npy").write_bytes(b"")
    assert type_(f"verify burgers --root {tmp_path}").exit_code == 2


def test_a_damaged_set_is_reported_with_exit_code_2(type_, tmp_path):
    type_(f"generate darcy --train 3 --test 2 --resolution 11 --out {tmp_path}")
    (tmp_path / "train_sol.npy").unlink()
    result = type_(f"verify darcy --root {tmp_path}")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "remove the generated files, then run `linearno data generate" in result.stderr


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("generate darsy", "did you mean 'darcy'?"),
        ("generate darcy --resolution 4 --out {}", "at least 5"),
        ("generate burgers --resolution 3 --out {}", "at least 4"),
        ("generate burgers --device cuda --out {}/set", "no CUDA device" if NO_GPU else "on the CPU only"),
        ("generate darcy --val 3 --out {}/set", "darcy has no split 'val'; it has train, test"),
        ("generate darcy --out {}/file", "cannot write to"),
        ("generate darcy --scheme rk4 --out {}/set", "darcy has one scheme only; leave out --scheme"),
        ("generate ns --scheme rk5 --out {}/set", "ns has no scheme 'rk5'; did you mean 'rk4'?"),
        ("generate ns --resolution 200 --out {}/set", "resolution 200 does not fit"),
        (
            "generate pipe --resolution 100 --out {}/set",
            "resolution 100 does not fit; expected a power of two",
        ),
        ("generate pipe --scheme rk4 --out {}/set", "pipe has one scheme only; leave out --scheme"),
        ("verify pipe --root {}", "does not exist; run `linearno data generate pipe"),
        (
            "generate elasticity --resolution 15 --out {}/set",
            "resolution 15 does not fit; it is the number of",
        ),
        ("generate elasticity --device cuda --out {}/set", "no CUDA device" if NO_GPU else "on the CPU only"),
        ("verify elasticity --root {}", "does not exist; run `linearno data generate elasticity"),
        ("verify ns --root {}", "does not exist; run `linearno data generate ns"),
        ("generate darcy --device tpu9 --out {}/set", "device 'tpu9' is not known"),
        ("generate darcy --device meta --out {}/set", "device 'meta' is not supported"),
        ("verify darcy --root {}/nowhere", "does not exist; run `linearno data generate darcy"),
        ("verify burgers --root {}/nowhere", "does not exist; run `linearno data generate burgers"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(type_, tmp_path, line, complaint):
    (tmp_path / "file").write_text("")
    result = type_(line.format(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing half-written


def test_a_small_flow_is_made_with_the_scheme_requested(type_, tmp_path):
    line = f"generate ns --train 2 --test 1 --resolution 16 --out {tmp_path}"
    first = type_(f"{line} --scheme rk4")
    assert first.exit_code == 0, first.output
    assert "seed 0, resolution 16, train 2, test 1, scheme rk4; generated in" in first.output
    assert "already complete, nothing to do" in type_(line).output  # the usual scheme
    other = type_(f"{line} --scheme euler")
    assert other.exit_code == 2
    assert "holds another set (ns: seed 0, resolution 16, train 2, test 1, scheme rk4)" in other.stderr
    assert "no problems found" in type_(f"verify ns --root {tmp_path}").output


def test_a_small_set_of_pipes_is_made_and_checked(type_, tmp_path):
    line = f"generate pipe --train 2 --test 1 --resolution 9 --out {tmp_path}"
    first = type_(line)
    assert first.exit_code == 0, first.output
    assert "seed 0, resolution 9, train 2, test 1; generated in" in first.output
    assert "already complete, nothing to do" in type_(line).output
    assert "no problems found" in type_(f"verify pipe --root {tmp_path}").output
    assert "data/pipe" in type_("list").output


def test_cells_are_made_and_checked_and_a_damaged_published_file_is_one_line(type_, tmp_path):
    result = type_(f"generate elasticity --train 3 --test 2 --out {tmp_path}")
    assert result.exit_code == 0, result.output
    assert "seed 0, resolution 10, train 3, test 2; generated in" in result.output
    assert "no problems found" in type_(f"verify elasticity --root {tmp_path}").output
    np.save(tmp_path / "Random_UnitCell_XY_10.npy", np.zeros((2000, 972, 2)))
    result = type_(f"verify elasticity --root {tmp_path}")
    assert result.exit_code == 2
    assert "XY_10.npy: xy is float64 (2000, 972, 2); expected real numbers (972, 2, samples)" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"u": np.full((3, 8, 8, 20), np.nan)}, "u: sample 0 has NaN or infinite values"),
        ({"u": np.zeros((3, 4, 4, 20))}, "u has shape (3, 4, 4, 20); expected (samples, n, n, frames)"),
        ({"v": np.zeros((3, 8, 8, 20))}, "no variable 'u'"),
    ],
)
def test_a_damaged_published_flow_is_one_line_and_exit_code_2(type_, tmp_path, fields, complaint):
    savemat(tmp_path / "NavierStokes_V1e-5_N1200_T20.mat", {"a": np.zeros((3, 8, 8))} | fields)
    result = type_(f"verify ns --root {tmp_path}")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "verify", "list"])
def test_the_help_of_each_command_shows_an_example(type_, command):
    assert f"linearno data {command}" in type_(f"{command} --help").output


@pytest.mark.skipif(not NO_GPU, reason="needs a machine without a CUDA device")
def test_a_gpu_that_is_not_here_is_one_line_and_leaves_no_folder(type_, tmp_path):
    result = type_(f"generate darcy --device cuda --out {tmp_path}/set")
    assert result.exit_code == 2
    assert "this machine has no CUDA device" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_ctrl_c_stops_promptly_with_one_line_and_keeps_what_is_done(tmp_path):
    code = (
        "from linearno.cli.data import app; import linearno.data.generation.generate as g; "
        "g.RECORD_SECONDS = 0; app()"
    )
    words = f"generate darcy --train 5000 --test 1 --resolution 65 --workers 1 --out {tmp_path}".split()
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    progress, end = tmp_path / "progress.json", time.monotonic() + PATIENCE
    while not (progress.exists() and json.loads(progress.read_text())["done"] >= 3):
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)  # a terminal tells the workers too
    _, stderr = child.communicate(timeout=PATIENCE)
    done = json.loads(progress.read_text())["done"]
    assert child.returncode == 130
    assert stderr == f"stopped; {done} new samples are saved, and the same command resumes\n"
    assert not (tmp_path / "card.json").exists()


@pytest.fixture
def requested_sizes(type_, monkeypatch):
    """The sizes that `generate` would make, and its output; nothing is solved."""

    def request(arguments, device="cpu", **changes):
        requested = []

        def fake(root, *, sizes, tick, **settings):
            requested.append(sizes)
            tick(1)
            raise UserError("enough")

        name = arguments.split()[0]
        changed = dataclasses.replace(DATASETS[name], generate=fake, **changes)
        monkeypatch.setitem(DATASETS._entries, name, changed)
        output = type_(f"generate {arguments} --device {device}").output
        return requested[0], output

    return request


def test_a_cpu_makes_a_small_set_unless_all_or_some_sizes_are_requested(requested_sizes, tmp_path):
    small = {"train": 5, "test": 2}
    sizes, output = requested_sizes(f"darcy --out {tmp_path}", small=small)
    assert sizes == small
    assert "darcy: 7 of 1,200 samples; for all: --full, or --device cuda on a GPU\n" in output
    for arguments, expected in (
        ("--full", {"train": 1000, "test": 200}),
        ("--train 3", {"train": 3, "test": 200}),
        ("--train 3 --test 1", {"train": 3, "test": 1}),
    ):
        sizes, output = requested_sizes(f"darcy --out {tmp_path} {arguments}", small=small)
        assert sizes == expected
        assert "--full" not in output


def test_a_gpu_and_a_fast_solver_make_all_samples(requested_sizes, tmp_path):
    whole = {"train": 1000, "test": 200}
    assert requested_sizes(f"darcy --out {tmp_path}", small={})[0] == whole
    assert requested_sizes(f"pipe --out {tmp_path}", device="cuda")[0] == whole


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_small_set_has_some_samples_of_every_split(requested_sizes, tmp_path, name):
    benchmark = DATASETS[name]
    if benchmark.generate is None:
        pytest.skip("no solver")
    sizes, _ = requested_sizes(f"{name} --out {tmp_path}")
    usual = benchmark.config.make({}).sizes
    assert sizes.keys() == usual.keys()
    assert all(2 <= sizes[split] <= usual[split] for split in usual)


class FewSamples(DarcyConfig):
    train: int = 4
    test: int = 2


@pytest.fixture
def tiny(type_, tmp_path, monkeypatch):
    """Darcy with six samples, in a working folder of its own and a list that is wide enough."""
    benchmark = dataclasses.replace(DATASETS["darcy"], config=FewSamples, resolution=11)
    monkeypatch.setitem(DATASETS._entries, "darcy", benchmark)
    monkeypatch.setattr("linearno.cli.data.console", Console(width=400))
    monkeypatch.chdir(tmp_path)

    def stopped(words):
        def two(work, jobs, workers):
            yield from (work(job) for job in jobs[:2])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, "process_map", two)
            assert type_(words).exit_code == 130

    return stopped


def test_without_sizes_those_of_the_set_that_was_begun_or_made_are_taken(type_, tiny):
    tiny("generate darcy --train 3 --test 1 --device cpu")
    note = "darcy: sizes as in data/darcy; for all 6 samples: --full with another --out\n"
    for outcome in ("generated in", "already complete, nothing to do"):
        result = type_("generate darcy --device cpu")
        assert result.exit_code == 0, result.output
        assert f"train 3, test 1; {outcome}" in result.stdout
        assert result.stderr == note


@pytest.mark.parametrize("before", ["", "stopped", "small", "other", "complete", "unreadable"])
def test_the_command_that_the_list_names_works(type_, tiny, tmp_path, before):
    if before == "stopped":
        tiny("generate darcy --train 3 --test 1 --resolution 12 --seed 5 --device cpu")
    elif before:
        words = {"small": "--train 2", "other": "--resolution 12", "complete": "--seed 7"}.get(before, "")
        assert type_(f"generate darcy --device cpu {words}").exit_code == 0
    if before == "unreadable":
        (tmp_path / "data/darcy/card.json").write_text("{")
    (row,) = (line for line in type_("list").output.splitlines() if line.startswith("darcy"))
    command = row.partition(" or the published")[0].rpartition("linearno data ")[2]
    result = type_(command)
    assert result.exit_code == 0, f"{command}: {result.output}"
    assert ("train 3, test 1" if before == "stopped" else "train 4, test 2") in result.output


@pytest.mark.parametrize(("name", "text"), [("card.json", "{"), ("progress.json", "{}")])
def test_an_unreadable_set_is_reported_in_its_row_and_hides_no_other(type_, tiny, tmp_path, name, text):
    (tmp_path / "data/darcy").mkdir(parents=True)
    (tmp_path / "data/darcy" / name).write_text(text)
    result = type_("list")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert f"error: data/darcy/{name}" in rows["darcy"]
    assert rows.keys() >= set(DATASETS)
    assert "generate …" not in result.output


def test_a_narrow_list_folds_the_names_of_files(type_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("linearno.cli.data.console", Console(width=80))
    head, *lines = type_("list").output.splitlines()
    last = "".join(line[head.index("how to get it") :].strip() for line in lines)
    for name in DATASETS:
        for file in DATASETS[name].published:
            assert file in last


def test_samples_that_were_drawn_again_are_named(type_, tmp_path):
    line = f"generate pipe --train 8 --test 2 --resolution 5 --out {tmp_path}"
    assert "samples redrawn" not in type_(line).output
    np.save(tmp_path / "train_draws.npy", np.float32([1, 2, 1, 1, 1, 1, 1, 3]))
    assert type_(line).output.endswith("\nsamples redrawn because a solve failed: train 1, 7\n")
    np.save(tmp_path / "train_draws.npy", np.full(8, 2.0, np.float32))
    np.save(tmp_path / "test_draws.npy", np.float32([1, 2]))
    assert type_(line).output.endswith(": train 0, 1, 2, 3, 4 and 3 more; test 1\n")


def test_the_list_says_what_is_here_and_how_to_get_the_rest(type_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("linearno.cli.data.console", Console(width=250))
    assert "nothing" in type_("list").output
    type_("generate darcy --train 3 --test 2 --resolution 11")
    (tmp_path / "data/ns").mkdir()
    (tmp_path / "data/ns/NavierStokes_V1e-5_N1200_T20.mat").write_bytes(b"0" * 10**7)
    (tmp_path / "data/elasticity/Meshes").mkdir(parents=True)
    (tmp_path / "data/elasticity/Meshes/Random_UnitCell_XY_10.npy").write_bytes(b"0" * 10**7)
    lines = {line.split()[0]: line for line in type_("list").output.splitlines() if line.strip()}
    assert "generated, seed 0, train 3, test 2" in lines["darcy"]
    assert "published, 1 files, 0.01 GB" in lines["ns"]
    without = "published, 1 files, 0.01 GB without Random_UnitCell_sigma_10.npy"
    assert without in lines["elasticity"]
    assert "linearno data generate ns --full" in lines["ns"]
