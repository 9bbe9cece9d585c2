"""What a type checker and `help` say of the public interface."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from linearno import CrossLinearNO, LinearNO, Transolver

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[1]
SCRIPT = """
import numpy as np
import torch
from linearno import LinearNO, Transolver, fit, load
from linearno.nn import ReferenceDistances

LinearNO(coords=2, outputs=1, width=64, unified=ReferenceDistances(ref=8))
LinearNO(coords=2, outputs=1, widht=3)
LinearNO(coords=2, outputs=1, stem="cnov")
Transolver(outputs=1)
bundle = fit("linearno", {"coords": np.zeros((4, 2)), "targets": np.zeros((3, 4, 1))}, epochs=3)
reveal_type(load("run").predict(np.zeros((1, 4, 1))))
reveal_type(load("run").predict(torch.zeros(1, 4, 1)))
"""


@pytest.mark.slow
def test_a_type_checker_knows_every_setting(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache"]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *options, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    lines = [line.partition("script.py:")[2] for line in ended.stdout.splitlines() if "script.py:" in line]
    assert [line.split(":")[0] for line in lines if "error:" in line] == ["8", "9", "10"], ended.stdout
    assert 'Unexpected keyword argument "widht"' in lines[0]
    revealed = [line for line in lines if "Revealed type" in line]
    assert "ndarray" in revealed[0]
    assert "Tensor" in revealed[1]


@pytest.mark.parametrize("cls", [LinearNO, Transolver, CrossLinearNO])
def test_every_argument_of_a_model_is_documented(cls):
    """`help(LinearNO)` shows the real signature, and a line for each argument."""
    names = list(inspect.signature(cls).parameters)
    assert "width" in names
    documented = inspect.getdoc(cls).partition("Args:")[2]
    assert [name for name in names if f"    {name}: " not in documented] == []
