"""Kernels access no memory outside of their tensors, at sizes that need padding."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect through glibc")
@pytest.mark.parametrize("side", ["end", "start"])
def test_no_kernel_reads_or_writes_outside_of_its_tensors(side):
    script = Path(__file__).with_name("guarded_run.py")
    result = subprocess.run([sys.executable, str(script), side], capture_output=True, text=True)
    assert result.returncode == 0, f"ended with {result.returncode}: {result.stderr[-3000:]}"
