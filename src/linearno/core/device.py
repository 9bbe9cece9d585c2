"""Which device and precision a run uses. Nothing falls back in silence."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal

import torch

from linearno.core.errors import UserError

Precision = Literal["fp32", "tf32", "bf16"]


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA where there is one and the CPU elsewhere."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r} is not known; expected auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name!r} was asked for but no CUDA device is here; use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name!r} is not here; this machine has {torch.cuda.device_count()}")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; expected auto, cpu or cuda")
    return device


def set_matmul_precision(precision: Precision) -> None:
    """Allow tf32 products on CUDA exactly when `tf32` is asked for. The CPU has no tf32: it stays fp32."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """bf16 products with fp32 weights where `bf16` is asked for; nothing otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@cache
def keep_freed_memory() -> None:
    """Make the C library keep what tensors free, instead of taking it back page by page for the next ones.

    glibc returns memory to the system above a threshold that follows the largest block it saw freed, up to
    32 MiB; one such block, freed untouched, raises it for good. Elsewhere this does nothing.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


def device_name(device: torch.device) -> str:
    """The device in words, for logs and run folders."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
