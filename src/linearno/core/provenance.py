"""Provenance of a result: versions, commit, machine."""

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
    """Version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions of Python, linearno and the packages that affect results."""
    installed = {name: package_version(name) for name in PACKAGES}
    own = {"python": platform.python_version(), "linearno": VERSION}
    return own | {name: version for name, version in installed.items() if version}


@cache
def commit() -> str | None:
    """Commit of the checkout that this code runs from, with `-dirty` if modified; None for a package.

    For a copy without git history, set the environment variable LINEARNO_COMMIT.
    """
    root = Path(__file__).parents[3]
    if given := os.environ.get("LINEARNO_COMMIT"):
        return given
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
    """Names of the processor and operating system, preceded by the GPU if `device` is one."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    host = f"{model}, {platform.system()}"
    if device is not None and device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {host}"
    return host
