"""Atomic file writes (a temporary file in the target folder, then a rename), reads, and folder locks."""

import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from linearno.core.errors import UserError, require

BUSY = "another process is writing to {root}; wait, or choose another folder"
MAX_JSON_BYTES = 2**26

log = logging.getLogger(__name__)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary file, then rename it to `path`; after an error no file is left.

    The file gets the mode that `open` would set, however `write` creates it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # follows the umask; safetensors creates files of mode 0600
            write(temporary)
            if temporary.stat().st_mode != mode:
                with suppress(OSError):  # a file system without modes
                    temporary.chmod(stat.S_IMODE(mode))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another path") from error


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_bytes(path: Path, content: bytes) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, *, how: str) -> Any:
    """Read a JSON file; `how` says in errors what to do."""
    if require(path, how=how).stat().st_size > MAX_JSON_BYTES:
        raise UserError(
            f"{path} is larger than {MAX_JSON_BYTES // 2**20} MiB, the limit for JSON files; {how}"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # syntax, encoding, numbers of too many digits, or nesting
        raise UserError(f"{path} is not valid JSON; {how}") from None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as a safetensors file, which contains no pickle and no code."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    write_atomically(path, write)


def read_tensors(path: Path, *, how: str) -> dict[str, torch.Tensor]:
    """Read a safetensors file; `how` says in errors what to do."""
    try:
        with safe_open(require(path, how=how), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError:
        raise UserError(f"{path} is truncated or not a safetensors file; {how}") from None


def tensor_shapes(path: Path, *, how: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file, read from its header."""
    try:
        with safe_open(require(path, how=how), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError:
        raise UserError(f"{path} is truncated or not a safetensors file; {how}") from None


def writable_folder(path: Path) -> Path:
    """Create the folder `path` if necessary, and raise at once if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}; choose another folder") from None
    return path


@contextmanager
def folder_lock(root: Path, *, busy: str = BUSY) -> Iterator[None]:
    """Lock a folder against other processes that write to it; `busy` is the error if it is locked.

    The lock is released when this process ends, for whatever reason, and is not inherited by child processes.
    """
    descriptor = _acquire_lock(root, busy)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire_lock(root: Path, busy: str) -> int | None:
    """File descriptor of the lock; None if the system or the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    descriptor = os.open(root, os.O_RDONLY)  # not inheritable, as Python opens all descriptors
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(busy.format(root=root)) from None
    except OSError as error:  # such as ENOLCK, EOPNOTSUPP, or EBADF for a folder on NFS
        os.close(descriptor)
        _warn_without_lock(error.strerror or str(error))
        return None
    return descriptor


@cache
def _warn_without_lock(reason: str) -> None:
    """Warn once per process."""
    log.warning("folders cannot be locked (%s): do not let two commands write to the same folder", reason)


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
