"""Files that are written whole or not at all: a temporary name beside the target, then a rename."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from linearno.core.errors import UserError, require


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`; a failure leaves nothing behind.

    The file gets the mode that `open` would give it, whatever way `write` creates it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # as the umask asks; safetensors makes files of mode 0600
            write(temporary)
            if temporary.stat().st_mode != mode:
                with suppress(OSError):  # a file system without modes
                    temporary.chmod(stat.S_IMODE(mode))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_whole(path, write)


def write_bytes(path: Path, content: bytes) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_whole(path, write)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, *, how: str) -> Any:
    try:
        return json.loads(require(path, how=how).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is not valid JSON; {how}") from None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Tensors as safetensors: no pickle, nothing that runs when it is opened."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    write_whole(path, write)


def read_tensors(path: Path, *, how: str) -> dict[str, torch.Tensor]:
    try:
        with safe_open(require(path, how=how), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError:
        raise UserError(f"{path} is truncated or not a safetensors file; {how}") from None


def writable_folder(path: Path) -> Path:
    """`path`, made if need be; an error now rather than after hours of work if it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}; choose another folder") from None
    return path


@contextmanager
def alone_in(root: Path) -> Iterator[None]:
    """Hold the folder: two processes that fill it at once would undo each other's work."""
    try:
        import fcntl
    except ImportError:  # not on this system: the user's own care must do
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is filling {root}; wait, or choose another folder") from None
        yield
    finally:
        os.close(folder)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
