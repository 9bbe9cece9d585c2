"""Device and precision of a run. There are no silent fallbacks."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal

import torch

from linearno.core.errors import UserError

Precision = Literal["fp32", "tf32", "bf16"]


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r} is not known; expected auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name!r}: this machine has no CUDA device; use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device {name!r} does not exist; expected cuda:0 to cuda:{count - 1}")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; expected auto, cpu or cuda")
    return device


def set_matmul_precision(precision: Precision) -> None:
    """Allow tf32 matrix products on CUDA if and only if `precision` is tf32; a CPU always uses fp32."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Autocast to bf16 (with fp32 weights) if `precision` is bf16, else a null context."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory for later tensors, instead of returning it to the system.

    glibc returns blocks above a threshold, which it raises to the largest block freed so far, up to 32 MiB.
    Freeing one untouched block of that size raises it permanently. No effect with other C libraries.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


def device_name(device: torch.device) -> str:
    """Description of the device for logs and run folders."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
