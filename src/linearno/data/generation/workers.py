"""Map a function over jobs in single-threaded worker processes, with results in order."""

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
# PYTHONSAFEPATH: without it, `python -c` of a child would import a numpy.py in the working directory. The
# child receives sys.path of this process after its start, so that modules next to a user's script are found.
CHILD_ENVIRONMENT = dict.fromkeys((*THREADS, "PYTHONSAFEPATH"), "1")


def process_map(work: Callable[[J], R], jobs: Sequence[J], workers: int) -> Generator[R, None, None]:
    """Yield work(job) for each job, in order; processes work a few jobs ahead of the consumer.

    Closing the iterator, or an error such as Ctrl-C, terminates the workers immediately. Results must be
    small, because a large result that is truncated in the pipe would block the shutdown.

    Args:
        work: function defined in a module, or a `functools.partial` of one.
        jobs: arguments of `work`.
        workers: number of processes.
    """
    if not jobs:
        return
    with _child_environment():  # creating the pool starts multiprocessing's resource tracker
        pool = ProcessPoolExecutor(
            min(workers, len(jobs)), multiprocessing.get_context("spawn"), _end_with_parent
        )
    todo, others = iter(jobs), multiprocessing.active_children()
    try:
        with _child_environment():
            pending = deque(pool.submit(work, job) for job in islice(todo, 2 * workers))
        while pending:
            result = pending.popleft().result()
            with _child_environment():  # may start another worker
                pending.extend(pool.submit(work, job) for job in islice(todo, 1))
            yield result
    except BaseException as error:
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process was killed (out of memory?); finished samples are kept: "
                "run the same command again, with fewer workers"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Initialise a worker so that it exits when its parent has ended, even if killed."""
    parent = multiprocessing.parent_process()

    def exit_after_parent() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


@contextmanager
def _child_environment() -> Iterator[None]:
    """Make processes started in this context use one thread and ignore SIGINT.

    One thread makes results independent of the number of cores. A terminal sends SIGINT to all processes; the
    parent terminates the workers.
    """
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
