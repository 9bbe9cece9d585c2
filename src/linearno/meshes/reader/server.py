"""Main loop of the reader process: call functions on files and return the results to the parent."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from linearno.core.errors import UserError
from linearno.meshes.reader import block_files, vtk_files
from linearno.meshes.reader.mesh import CaseFile

BASE_MEMORY = 3 * 2**30  # bytes of address space per call, plus MEMORY_PER_BYTE times the file size
MEMORY_PER_BYTE = 64


def serve() -> None:
    """Read (function, file, args, kwargs) from standard input, write (result, error) to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates this process
    calls, results = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # libraries print to it
    os.dup2(null, 2)
    previous: CaseFile | None = None
    while True:
        try:
            function, file, args, kwargs = pickle.load(calls)
        except (EOFError, pickle.UnpicklingError):
            return
        if file != previous:
            vtk_files.forget_grids()
            block_files.forget_blocks()
        _limit_memory(BASE_MEMORY + MEMORY_PER_BYTE * file.bytes)
        pickle.dump(_outcome(file, partial(function, file, *args, **kwargs)), results)
        results.flush()
        previous = file


def _outcome(file: CaseFile, call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except UserError as error:
        message = str(error)
    except MemoryError:
        message = "needs far more memory than its size suggests: it is damaged, or of another format"
    except ImportError as error:
        missing = error.name or str(error)
        return None, UserError(f"{missing} is not installed; run: pip install 'linearno[mesh]'")
    except OSError as error:
        message = f"cannot be read or written ({error.strerror or error})"
    except Exception:
        return None, RuntimeError(f"{file.path}: the reader failed\n{traceback.format_exc()}")
    return None, UserError(f"{file.path} {message}")


def _limit_memory(size: int) -> None:
    """Limit the address space, so that damaged headers raise MemoryError."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size if hard < 0 else min(size, hard), hard))
