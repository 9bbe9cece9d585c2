"""A compiler takes a training step as one graph."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def run(*args, how="plain"):
    script = Path(__file__).with_name("compiled_run.py")
    chosen = os.environ | {"LINEARNO_BACKEND": how}
    ended = subprocess.run([sys.executable, str(script), *args], env=chosen, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("model", "linearno-packed"),
        ("loss", "linearno-grid"),
        ("loss", "cross-linearno"),
    ],
)
def test_a_compiled_step_has_one_graph_and_the_values_and_gradients_of_an_eager_one(part, name):
    run("aot_eager", part, name)


def test_a_compiled_step_with_kernels_has_one_graph():
    pytest.importorskip("triton")
    run("aot_eager", "loss", "transolver", how="kernel")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_step_compiled_to_machine_code_has_one_graph():
    run("inductor", "model", "linearno")
