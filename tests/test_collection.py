"""Tests can be collected without optional packages, as on a GPU machine that has only what they need."""

import os
import subprocess
import sys
from pathlib import Path

ABSENT = ["beartype", "hypothesis", "onnx", "onnxruntime", "pyvista", "skfem", "tensorboard", "triton"]
ABSENT += ["vtkmodules"]
FINDER = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_gpu_tests_are_collected_without_optional_packages(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FINDER)  # Python imports it when it starts
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not import 'pyvista'" in done.stdout  # absent indeed
    assert "tests/training/test_fit_cuda.py::" in done.stdout
