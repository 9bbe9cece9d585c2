"""Scripts that run Triton's compiler, while the tests around them run its interpreter."""

import os
import subprocess
import sys
from pathlib import Path


def compiled(script: str, *args: str, cache: Path) -> list[str]:
    """The lines that a script of this folder writes."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *args],
        env=clean | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.splitlines()
