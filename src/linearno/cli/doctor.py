"""`linearno doctor`: installed packages, device, precision, data."""

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
    "gpu": ("triton", "fused kernels on a GPU; CUDA builds of torch bring it"),
    "mesh": ("pyvista", "VTK, VTU, VTP and STL files in and out"),
    "export": ("onnxscript", "ONNX files out"),
    "track": ("tensorboard", "training curves in TensorBoard"),
    "dev": ("pytest", "running the tests"),
}


def doctor() -> None:
    """Show what is installed, which device and precision are used, and how to get what is missing.

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
    table.add_row("ops", _ops(device))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    table.add_row("free disk here", f"{free:.0f} GiB (Darcy at 421×421 takes 1.6)")
    for name in DATASETS:
        benchmark = DATASETS[name]
        root = benchmark.config.make({}).root
        there = f"{root}" if root.exists() else f"not at {root}; run: linearno data generate {name}"
        table.add_row(f"data: {name}", there)
    for extra, (module, purpose) in EXTRAS.items():
        installed = importlib.util.find_spec(module) is not None
        advice = "installed" if installed else f"missing ({purpose}); run: pip install 'linearno\\[{extra}]'"
        table.add_row(f"extra: {extra}", advice)
    console.print(table)


def _ops(device: torch.device) -> str:
    if device.type == "cuda" and kernels_available_on("cuda"):
        return "fused Triton kernels; LINEARNO_BACKEND=plain turns them off"
    return "plain PyTorch; fused kernels need CUDA" + ("" if kernels_available_on("cuda") else " and triton")


def _precision(device: torch.device) -> str:
    if device.type == "cpu":
        bf16 = "bf16 possible" if torch.backends.mkldnn.is_available() else "no bf16"
        return f"fp32 by default ({bf16}; tf32 needs CUDA)"
    return "fp32 by default; tf32 and bf16 with --set training.precision=…"
