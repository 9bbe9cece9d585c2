"""Where a result comes from: versions, commit, machine."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from linearno.core.version import VERSION

PACKAGES = ("torch", "numpy", "scipy", "h5py", "safetensors", "pydantic", "matplotlib", "triton", "vtk")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Python and the packages that can change a number."""
    found = {name: package_version(name) for name in PACKAGES}
    ours = {"python": platform.python_version(), "linearno": VERSION}
    return ours | {name: version for name, version in found.items() if version}


@cache
def commit() -> str | None:
    """The commit of the checkout that this code runs from, `-dirty` when changed; None when installed.

    A copy without its history says it with LINEARNO_COMMIT in the environment.
    """
    root = Path(__file__).parents[3]
    if said := os.environ.get("LINEARNO_COMMIT"):
        return said
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True
        )
        status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


@cache
def machine(device: torch.device | None = None) -> str:
    """Processor and system, in words; the GPU comes first where the work was done on one."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    host = f"{model}, {platform.system()}"
    if device is not None and device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {host}"
    return host
