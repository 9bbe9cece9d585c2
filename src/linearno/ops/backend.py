"""Which form of an op runs: its fused kernel, or plain PyTorch. Nothing changes over in silence."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from linearno.core.errors import UserError, did_you_mean

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])
Backend = Literal["auto", "kernel", "plain"]
ENVIRONMENT_VARIABLE = "LINEARNO_BACKEND"  # of the environment: the choice where no `backend` is active

_LOGGED: set[str] = set()
_CHOICE: ContextVar[Backend | None] = ContextVar("backend", default=None)


def _constant_for_compiler(function: Function) -> Function:
    """For a compiler what it gives never changes. `torch.compiler.assume_constant_result` does the same, but
    imports the compiler first, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what the compiler looks for
    return function


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Choose the form of every op inside the block.

    auto    kernels on CUDA, plain PyTorch elsewhere and for what the kernels do not do; the log says so
    kernel  kernels or an error; on a CPU they run in Triton's interpreter (TRITON_INTERPRET=1)
    plain   no kernels
    """
    token = _CHOICE.set(_validated(name))
    try:
        yield
    finally:
        _CHOICE.reset(token)


@_constant_for_compiler
def active_backend() -> Backend:
    """What the innermost `backend` says, else the environment, else auto."""
    return _CHOICE.get() or _validated(os.environ.get(ENVIRONMENT_VARIABLE, "auto"))


def takes_kernel(op: str, x: Tensor, refusal: str | None) -> bool:
    """Whether `op` runs as a kernel on `x`; `refusal` says why the kernel could not, None that it can."""
    choice = active_backend()
    if choice == "plain" or (choice == "auto" and x.device.type != "cuda"):
        return False
    if refusal is None:
        refusal = _kernel_obstacle(x.device.type)
    if refusal is None:
        _log_once(logging.INFO, f"{op}: fused kernel")
        return True
    if choice == "kernel":
        raise UserError(f"{op}: {refusal}; use backend auto or plain")
    _log_once(logging.WARNING, f"{op}: plain PyTorch, since {refusal}")
    return False


def kernels_available_on(device_type: str) -> bool:
    """Whether there are kernels for tensors on a device of that kind."""
    return _kernel_obstacle(device_type) is None


@_constant_for_compiler
def _kernel_obstacle(device_type: str) -> str | None:
    """Why kernels cannot run on a device of that kind, None if they can."""
    return _cached_kernel_obstacle(device_type)


@cache
def _cached_kernel_obstacle(device_type: str) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'linearno[gpu]')"
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "kernels run on a CPU only with TRITON_INTERPRET=1 in the environment"
    return None if device_type in ("cpu", "cuda") else f"there are no kernels for {device_type}"


def _log_once(level: int, message: str) -> None:
    """Once for each message: an op is called thousands of times. A compiler traces past it."""
    if not torch.compiler.is_compiling() and message not in _LOGGED:
        _LOGGED.add(message)
        log.log(level, "%s", message)


def _validated(name: str) -> Backend:
    if name not in get_args(Backend):
        raise UserError(f"unknown backend {name!r}; {did_you_mean(name, get_args(Backend))}")
    return cast(Backend, name)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which products with `x` are taken: autocast's where it is on."""
    device_type = x.device.type
    use_autocast = torch.is_autocast_enabled(device_type) and x.dtype == torch.float32
    return torch.get_autocast_dtype(device_type) if use_autocast else x.dtype
