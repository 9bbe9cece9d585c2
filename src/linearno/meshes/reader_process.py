"""Read mesh files in a separate process: a file that crashes the reader, or takes too long, is a `UserError`.

The process is started with `subprocess`, because `multiprocessing` would import the user's main script (and
PyTorch with it), would copy the parent's `sys.path`, and needs a guarded main module.
"""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import CaseFile

START = """
import sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from linearno.meshes.reader.server import serve
serve()
"""
ROOT = str(Path(__file__).parents[2])  # folder from which `linearno` is imported
TIME_LIMIT = 120.0  # seconds per file, plus its size / BYTES_PER_SECOND
BYTES_PER_SECOND = 1e6
MAX_READERS = 8

P = ParamSpec("P")
R = TypeVar("R")


class Reader:
    """Calls functions on files in a separate process, started on demand and restarted after a crash.

    Args:
        time_limit: seconds per file, plus one per megabyte.
    """

    def __init__(self, time_limit: float = TIME_LIMIT):
        self.time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        function: Callable[Concatenate[CaseFile, P], R],
        file: CaseFile,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(file, *args, **kwargs)` in the process; see `linearno.meshes.reader.commands`.

        Faults of the file are raised as a `UserError` that names it.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        limit = self.time_limit + file.bytes / BYTES_PER_SECOND
        timer, start = threading.Timer(limit, process.kill), time.monotonic()
        timer.start()
        try:
            pickle.dump((function, file, args, kwargs), process.stdin)
            process.stdin.flush()
            result, error = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):  # the process has ended
            self.close()
            late = time.monotonic() - start >= limit
            what = f"was not read within {limit:.3g} s" if late else "made the reader crash"
            raise UserError(f"{file.path} {what}: it is damaged, or of another format") from None
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        if error is not None:
            raise error
        return result

    def interrupt(self) -> None:
        """Kill the process, so that a call in another thread raises."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # -P keeps the working directory off sys.path: a pyvista.py there must not run
            command = [sys.executable, "-P", "-c", START, ROOT]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process


class UnreadableCase(NamedTuple):
    """An unusable case and the error message."""

    file: CaseFile
    reason: str


def read_in_parallel(
    read: Callable[[Reader, CaseFile], R],
    files: Sequence[CaseFile],
    on_done: Callable[[int], None] = lambda count: None,
) -> list[R | UnreadableCase]:
    """Call `read(reader, file)` for all files with several reader processes; results are in order.

    A `UserError` becomes an `UnreadableCase`.

    Args:
        read: function that calls the given reader.
        files: cases to read.
        on_done: called with 1 after each file.
    """
    readers = [Reader() for _ in range(max(1, min(MAX_READERS, os.cpu_count() or 1, len(files))))]
    idle: SimpleQueue[Reader] = SimpleQueue()
    for reader in readers:
        idle.put(reader)

    def read_one(file: CaseFile) -> R | UnreadableCase:
        reader = idle.get()
        try:
            return read(reader, file)
        except UserError as error:
            return UnreadableCase(file, str(error))
        finally:
            idle.put(reader)

    pool, results = ThreadPoolExecutor(len(readers)), []
    try:
        for result in pool.map(read_one, files):
            results.append(result)
            on_done(1)
        return results
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for reader in readers:
            reader.interrupt()
        pool.shutdown()
        for reader in readers:
            reader.close()
