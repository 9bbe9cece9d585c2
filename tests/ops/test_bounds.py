"""Kernels stay inside of their tensors at sizes that fit no tile."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="guards pages of memory by Linux calls")
@pytest.mark.parametrize("side", ["end", "start"])
def test_no_kernel_reads_or_writes_outside_of_its_tensors(side):
    script = Path(__file__).with_name("guarded_run.py")
    ended = subprocess.run([sys.executable, str(script), side], capture_output=True, text=True)
    assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-3000:]}"
