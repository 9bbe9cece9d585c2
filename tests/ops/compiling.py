"""Run scripts with Triton's compiler, while the tests use its interpreter."""

import os
import subprocess
import sys
from pathlib import Path


def run_script(script: str, *args: str, cache: Path) -> list[str]:
    """The lines of standard output of a script of this folder."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *args],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()
