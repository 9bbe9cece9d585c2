"""Every example runs, and prints what it claims. Training is shortened where the claim does not need it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = r"(-?\d[\d.,e+-]*)"


@pytest.fixture
def example(capfd, monkeypatch, tmp_path):
    """Run `main` of an example in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name, **arguments):
        path = str(EXAMPLES / f"{name}.py")
        if not arguments:
            runpy.run_path(path, run_name="__main__")
            return capfd.readouterr().out
        # training is faster in a process that does not check the shapes of every call
        call = f"import runpy; from pathlib import *; runpy.run_path({path!r})['main'](**{arguments!r})"
        ended = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def number_after(text, output):
    """The number that an example printed after `text`."""
    found = re.search(re.escape(text) + r"\s*" + NUMBER, output)
    assert found, output
    return float(found[1].replace(",", ""))


def test_every_example_is_tested_here_or_named():
    elsewhere = {"own_data"}  # tests/cli/test_own_data_elsewhere.py
    tested = set(re.findall(r'example\("(\w+)"', Path(__file__).read_text()))
    assert tested | elsewhere == {path.stem for path in EXAMPLES.glob("*.py")}


def test_a_model_is_trained_on_arrays(example):
    assert number_after("relative L2 error on 64 new loads:", example("fit_arrays", epochs=6)) < 0.5


def test_a_field_encoded_on_coarse_points_is_queried_on_fine_ones(example):
    output = example("encode_query", epochs=6)
    assert number_after("relative L2 error at 480 points, encoded from 48:", output) < 0.5
    assert number_after("between query and predict at the 48 points:", output) < 1e-5


def test_a_large_mesh_is_streamed_in_chunks_with_the_result_of_one_call(example):
    output = example("stream_large_mesh")
    assert number_after("200,000 points in chunks of", output) < 200_000
    assert number_after("relative to the largest value:", output) < 1e-5


def test_published_weights_give_the_published_output(example):
    output = example("published_weights")
    assert "LinearNO with 11,505 parameters" in output
    assert number_after("relative to the largest value:", output) < 2e-5


def test_an_exported_file_predicts_without_the_library(example):
    output = example("export_model", formats=("torch", "onnx"))
    assert number_after("model.pt2: 60 points, largest difference from the model:", output) < 1e-5
    if "no ONNX" not in output:
        assert number_after("model.onnx: 60 points, largest difference from the model:", output) < 1e-5


def test_two_processes_reach_the_losses_of_one(example, tmp_path):
    output = example("two_processes", out=tmp_path, epochs=2)
    assert number_after("epoch 2: loss", output) < number_after("epoch 1: loss", output)
    assert number_after("largest relative difference:", output) < 1e-5


def test_a_benchmark_of_ones_own_is_trained_with_its_loss_and_judged_by_its_metric(example, tmp_path):
    output = example("own_benchmark", out=tmp_path / "run", epochs=6)
    for metric in ("relative_l2", "peak_error"):
        assert number_after(f"{metric}:", output) < 0.6
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "kind: benchmark" in config


def test_chunks_of_points_merge_into_dense_attention(example):
    assert number_after("largest difference from dense attention:", example("attention_states")) < 1e-12


def test_a_model_of_ones_own_is_compared_with_linearno(example, tmp_path):
    output = example("own_model", out=tmp_path, train=24, epochs=2)
    assert output.count("test relative L2") == 2
    assert "local-conv" in (tmp_path / "report.html").read_text()


def test_an_airfoil_is_improved_by_gradients_and_checked_with_the_solver(example, tmp_path):
    output = example("optimise_airfoil", out=tmp_path, samples=2, resolution=16, epochs=2, steps=3)
    start, optimum = (
        number_after(f"{name} lift over drag by the surrogate:", output) for name in ("start", "optimum")
    )
    assert optimum >= start
    assert output.count("by the solver:") == 2
    assert "start: NACA (2.00, 4.00, 12.00) at 2.00 degrees" in output


def test_the_drag_of_a_car_is_lowered_with_gradients_of_a_surrogate(example):
    output = example("lower_drag", cars=2, epochs=6, steps=5, seconds=0.01)
    predicted = re.search(r"surrogate: (\S+) N, then (\S+) N", output)
    assert float(predicted[2]) < float(predicted[1]), output
    assert re.search(r"solver: (\S+) N, then (\S+) N", output), output
