"""Mesh files, read by a process of their own that is kept: a file that crashes or hangs it is an error with a
name, and nothing else."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

from linearno.core.errors import UserError
from linearno.meshes.reader.ipc import Arrays, Words, receive, send

FOLDER = Path(__file__).parent / "reader"
START = """
import sys, types
package = sys.modules["mesh"] = types.ModuleType("mesh")
package.__path__ = [sys.argv[1]]
from mesh.server import main
main()
"""  # the folder as a package of its own: linearno itself, with torch, takes seconds to import
PATIENCE = 120.0  # seconds for a file, and one more for each PACE bytes of it
PACE = 1e6

T = TypeVar("T")
R = TypeVar("R")


class Reader:
    """Asks the process; starts it when it is needed, and anew after it has died."""

    def __init__(self, patience: float = PATIENCE):
        self.patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(
        self, job: str, path: Path, words: Words | None = None, arrays: Arrays | None = None
    ) -> tuple[Words, Arrays]:
        """The result of a job on a file; what is wrong with the file is an error that names it."""
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        size = path.stat().st_size if path.is_file() else 0
        timer = threading.Timer(self.patience + size / PACE, end)
        timer.start()
        try:
            send(process.stdin, {"job": job, "path": str(path), **(words or {})}, arrays)
            answer = receive(process.stdout)
        except OSError:  # it is gone, and its pipe with it
            answer = None
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        if answer is None:
            self.close()
            raise UserError(f"{path} {_end_words(late.is_set(), self.patience)}")
        return _result(path, *answer)

    def interrupt(self) -> None:
        """End what another thread is asking; there it is an error."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # -P keeps the working directory off sys.path: a pyvista.py there must not run
            command = [sys.executable, "-P", "-c", START, str(FOLDER)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process


def _end_words(late: bool, patience: float) -> str:
    what = f"was not read within {patience:g} s" if late else "made the reader crash"
    return f"{what}: it is damaged, or not what its ending says"


def _result(path: Path, words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    if "refused" in words:
        raise UserError(f"{path} {words['refused']}")
    if "missing" in words:
        raise UserError(f"{words['missing']} is not installed; run: pip install 'linearno[mesh]'")
    if "bug" in words:
        raise RuntimeError(f"{path}: the reader failed\n{words['bug']}")
    return words["ok"], arrays


@contextmanager
def results_of(work: Callable[[Reader, T], R], items: Sequence[T], workers: int) -> Iterator[Iterator[R]]:
    """work(reader, item) for each item, in order, by as many readers at once; closed when left."""
    readers = [Reader() for _ in range(min(workers, len(items)) or 1)]
    free: SimpleQueue[Reader] = SimpleQueue()
    for reader in readers:
        free.put(reader)

    def one(item: T) -> R:
        reader = free.get()
        try:
            return work(reader, item)
        finally:
            free.put(reader)

    pool = ThreadPoolExecutor(len(readers))
    try:
        yield pool.map(one, items)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for reader in readers:
            reader.interrupt()
        pool.shutdown()
        for reader in readers:
            reader.close()
