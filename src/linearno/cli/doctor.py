"""`linearno doctor`: show installed packages, device, precision and data."""

import importlib.util
import shutil
from pathlib import Path

import torch
from rich.table import Table

from linearno.cli.shared import console
from linearno.core.device import device_name, resolve_device
from linearno.core.provenance import commit, machine, versions
from linearno.data import DATASETS
from linearno.ops.backend import kernels_available_on

EXTRAS = {
    "gpu": ("triton", "for fused kernels on a GPU; CUDA builds of torch include it"),
    "mesh": ("pyvista", "to read and write VTK, VTU, VTP and STL files"),
    "export": ("onnxscript", "to export ONNX files"),
    "track": ("tensorboard", "for training curves in TensorBoard"),
    "dev": ("pytest", "to run the tests"),
}


def doctor() -> None:
    """Show installed packages and data, device and precision, and how to install what is missing.

    Example:

      linearno doctor
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, found in versions().items():
        table.add_row(name, found)
    device = resolve_device("auto")
    table.add_row("commit", commit() or "installed package")
    table.add_row("machine", machine())
    table.add_row("device", f"{device} ({device_name(device)})")
    table.add_row("precision", _precision(device))
    table.add_row("ops", _backend(device))
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    table.add_row("free disk space", f"{free_gib:.0f} GiB (Darcy at 421×421 takes 1.6)")
    for name in DATASETS:
        benchmark = DATASETS[name]
        root = benchmark.config.make({}).root
        status = f"{root}" if root.exists() else f"not at {root}; run: linearno data generate {name}"
        table.add_row(f"data: {name}", status)
    for extra, (module, purpose) in EXTRAS.items():
        installed = importlib.util.find_spec(module) is not None
        advice = "installed" if installed else f"missing ({purpose}); run: pip install 'linearno\\[{extra}]'"
        table.add_row(f"extra: {extra}", advice)
    console.print(table)


def _backend(device: torch.device) -> str:
    """Which backend computes the operations."""
    if device.type == "cuda" and kernels_available_on("cuda"):
        return "fused Triton kernels; LINEARNO_BACKEND=plain disables them"
    return "plain PyTorch; fused kernels need CUDA" + ("" if kernels_available_on("cuda") else " and triton")


def _precision(device: torch.device) -> str:
    """Default and supported precisions of training."""
    if device.type == "cpu":
        bf16 = "bf16 supported" if torch.backends.mkldnn.is_available() else "no bf16"
        return f"fp32 by default ({bf16}; tf32 needs CUDA)"
    return "fp32 by default; tf32 and bf16 with --set training.precision=…"
