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
from linearno.data import DATASETS
from linearno.data import generate as module

NO_GPU = not torch.cuda.is_available()


@pytest.fixture
def type_(monkeypatch):
    monkeypatch.setattr(module, "in_order", lambda work, jobs, workers: (work(job) for job in jobs))
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
    assert first.output.startswith(f"{tmp_path}: seed 0, resolution 11, train 3, test 2; made in")
    assert first.output.endswith(" s (solved on cpu)\n")
    assert first.output.count("\n") == 1  # quiet where there is no terminal
    assert "already there, nothing to do" in type_(line).output
    assert "all is well" in type_(f"verify darcy --root {tmp_path}").output


def test_a_benchmark_with_a_validation_split_makes_it_too(type_, tmp_path):
    line = f"generate burgers --train 3 --test 2 --val 1 --resolution 8 --out {tmp_path}"
    result = type_(line)
    assert result.exit_code == 0
    assert "seed 0, resolution 8, train 3, test 2, val 1; made in" in result.output
    assert "already there, nothing to do" in type_(line).output
    assert "all is well" in type_(f"verify burgers --root {tmp_path}").output
    (tmp_path / "val_u.npy").write_bytes(b"")
    assert type_(f"verify burgers --root {tmp_path}").exit_code == 2


def test_a_damaged_set_is_told_with_exit_code_2(type_, tmp_path):
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
            "resolution 100 does not fit; Pipe needs",
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


def test_a_small_flow_is_made_with_the_scheme_that_was_asked_for(type_, tmp_path):
    line = f"generate ns --train 2 --test 1 --resolution 16 --out {tmp_path}"
    first = type_(f"{line} --scheme rk4")
    assert first.exit_code == 0, first.output
    assert "seed 0, resolution 16, train 2, test 1, scheme rk4; made in" in first.output
    assert "already there, nothing to do" in type_(line).output  # the usual scheme
    other = type_(f"{line} --scheme euler")
    assert other.exit_code == 2
    assert "holds another set (ns: seed 0, resolution 16, train 2, test 1, scheme rk4)" in other.stderr
    assert "all is well" in type_(f"verify ns --root {tmp_path}").output


def test_a_small_set_of_pipes_is_made_and_checked(type_, tmp_path):
    line = f"generate pipe --train 2 --test 1 --resolution 9 --out {tmp_path}"
    first = type_(line)
    assert first.exit_code == 0, first.output
    assert "seed 0, resolution 9, train 2, test 1; made in" in first.output
    assert "already there, nothing to do" in type_(line).output
    assert "all is well" in type_(f"verify pipe --root {tmp_path}").output
    assert "data/pipe" in type_("list").output


def test_cells_are_made_and_checked_and_a_damaged_published_file_is_one_line(type_, tmp_path):
    result = type_(f"generate elasticity --train 3 --test 2 --out {tmp_path}")
    assert result.exit_code == 0, result.output
    assert "seed 0, resolution 10, train 3, test 2; made in" in result.output
    assert "all is well" in type_(f"verify elasticity --root {tmp_path}").output
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
    assert "no CUDA device is here" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_ctrl_c_stops_promptly_with_one_line_and_keeps_what_is_done(tmp_path):
    code = "from linearno.cli.data import app; import linearno.data.generate as g; g.RECORD_EVERY = 0; app()"
    words = f"generate darcy --train 5000 --test 1 --resolution 65 --workers 1 --out {tmp_path}".split()
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    progress, end = tmp_path / "progress.json", time.monotonic() + 30
    while not (progress.exists() and json.loads(progress.read_text())["done"] >= 3):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)  # a terminal tells the workers too
    _, stderr = child.communicate(timeout=10)
    done = json.loads(progress.read_text())["done"]
    assert child.returncode == 130
    assert stderr == f"stopped; {done} samples are kept and the same command goes on from there\n"
    assert not (tmp_path / "card.json").exists()


def test_a_set_that_takes_hours_is_made_small_unless_all_of_it_is_asked_for(type_, tmp_path, monkeypatch):
    slow = dataclasses.replace(DATASETS["darcy"], seconds=100.0, resolution=11)
    monkeypatch.setitem(DATASETS._entries, "darcy", slow)
    small = type_(f"generate darcy --device cpu --workers 1 --out {tmp_path / 'small'}")
    assert small.exit_code == 0
    assert "darcy: all 1,200 samples would take about 33 h on 1 cores; making 4 in" in small.stderr
    assert "--full" in small.stderr
    assert "train 2, test 2" in small.stdout
    asked = type_(f"generate darcy --device cpu --train 5 --test 1 --out {tmp_path / 'asked'}")
    assert "train 5, test 1" in asked.stdout
    assert not asked.stderr


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
    assert "published, 1 files, 0.01 GB" in lines["elasticity"]
    assert "linearno data generate ns --full (about" in lines["ns"]
