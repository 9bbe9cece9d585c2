"""Worker processes that compute on one thread each, end with their parent, and give results in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from linearno.core.errors import UserError

J = TypeVar("J")
R = TypeVar("R")

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# PYTHONSAFEPATH: a child starts as `python -c`, which would import a numpy.py of the working directory. After
# its start it takes over sys.path of this process, so modules next to a user's script are still found.
CHILD_ENVIRONMENT = dict.fromkeys((*THREADS, "PYTHONSAFEPATH"), "1")


def process_map(work: Callable[[J], R], jobs: Sequence[J], workers: int) -> Generator[R, None, None]:
    """work(job) for each job, in order, computed by `workers` processes a little ahead of the consumer.

    Closing the iterator, or an error (Ctrl-C too), ends the workers at once, in the middle of their work.
    Keep results small: a large one that is cut off in the pipe would block the end.
    """
    if not jobs:
        return
    with _for_children():  # the pool's locks start multiprocessing's resource tracker, also a Python process
        pool = ProcessPoolExecutor(
            min(workers, len(jobs)), multiprocessing.get_context("spawn"), _end_with_parent
        )
    todo, others = iter(jobs), multiprocessing.active_children()
    try:
        with _for_children():
            pending = deque(pool.submit(work, job) for job in islice(todo, 2 * workers))
        while pending:
            result = pending.popleft().result()
            with _for_children():  # a submit may start another worker
                pending.extend(pool.submit(work, job) for job in islice(todo, 1))
            yield result
    except BaseException as error:
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process was ended from outside (out of memory?); what was finished is kept: "
                "run the same command again, with fewer workers"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: leave as soon as the parent is gone, even if it was killed."""
    parent = multiprocessing.parent_process()

    def leave() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


@contextmanager
def _for_children() -> Iterator[None]:
    """Processes started inside use one thread, so that bytes do not depend on the machine's cores, and are
    deaf to Ctrl-C, which a terminal sends to all of them: the parent alone decides when they end."""
    before = {name: os.environ.get(name) for name in CHILD_ENVIRONMENT}
    os.environ.update(CHILD_ENVIRONMENT)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if os.name == "posix" else None
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
