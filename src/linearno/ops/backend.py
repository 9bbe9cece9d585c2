"""Select the backend of every op: fused kernels or plain PyTorch. A fallback is logged."""

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
ENVIRONMENT_VARIABLE = "LINEARNO_BACKEND"  # default outside `backend` blocks

_LOGGED: set[str] = set()
_CHOICE: ContextVar[Backend | None] = ContextVar("backend", default=None)


def _constant_for_compiler(function: Function) -> Function:
    """`torch.compiler.assume_constant_result`, without its import of the compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Select the backend of every op inside the block.

    auto    kernels on CUDA; plain PyTorch elsewhere and, with a warning, for unsupported shapes and dtypes
    kernel  kernels or an error; on a CPU they need Triton's interpreter (TRITON_INTERPRET=1)
    plain   plain PyTorch
    """
    token = _CHOICE.set(_validated(name))
    try:
        yield
    finally:
        _CHOICE.reset(token)


@_constant_for_compiler
def active_backend() -> Backend:
    """The backend of the innermost `backend` block, else of the environment, else auto."""
    return _CHOICE.get() or _validated(os.environ.get(ENVIRONMENT_VARIABLE, "auto"))


def takes_kernel(op: str, x: Tensor, refusal: str | None) -> bool:
    """Whether `op` runs as a kernel on `x`; log the decision.

    Args:
        op: name of the op in messages.
        x: input that decides the device.
        refusal: why the kernel does not support the inputs; None if it does.
    """
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
    """Whether kernels can run on a type of device such as 'cuda'."""
    return _kernel_obstacle(device_type) is None


@_constant_for_compiler
def _kernel_obstacle(device_type: str) -> str | None:
    """Why kernels cannot run on this type of device; None if they can."""
    return _cached_kernel_obstacle(device_type)


@cache
def _cached_kernel_obstacle(device_type: str) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'linearno[gpu]')"
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "kernels on a CPU need TRITON_INTERPRET=1 in the environment"
    return None if device_type in ("cpu", "cuda") else f"there are no kernels for {device_type}"


def _log_once(level: int, message: str) -> None:
    """Log each message once; skipped while a compiler traces."""
    if not torch.compiler.is_compiling() and message not in _LOGGED:
        _LOGGED.add(message)
        log.log(level, "%s", message)


def _validated(name: str) -> Backend:
    if name not in get_args(Backend):
        raise UserError(f"unknown backend {name!r}; {did_you_mean(name, get_args(Backend))}")
    return cast(Backend, name)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with `x`: that of autocast if it is on and `x` is float32."""
    device_type = x.device.type
    use_autocast = torch.is_autocast_enabled(device_type) and x.dtype == torch.float32
    return torch.get_autocast_dtype(device_type) if use_autocast else x.dtype
