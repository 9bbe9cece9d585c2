"""Map a function over jobs in worker processes, each on one thread; results come in order."""

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
# PYTHONSAFEPATH: a child starts as `python -c`, which would import a numpy.py in the working directory. After
# its start it gets sys.path of this process, so modules next to a user's script are still found.
CHILD_ENVIRONMENT = dict.fromkeys((*THREADS, "PYTHONSAFEPATH"), "1")


def process_map(work: Callable[[J], R], jobs: Sequence[J], workers: int) -> Generator[R, None, None]:
    """Yield work(job) for each job, in order; processes work a few jobs ahead of the consumer.

    Closing the iterator, or an error such as Ctrl-C, terminates the workers at once. Results must be small: a
    large one that is cut off in the pipe would block the shutdown.

    Args:
        work: a function of a module, or a `functools.partial` of one.
        jobs: arguments of `work`.
        workers: number of processes.
    """
    if not jobs:
        return
    with _child_environment():  # the pool's locks start multiprocessing's resource tracker, a Python process
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
                "a worker process was ended from outside (out of memory?); finished samples are kept: "
                "run the same command again, with fewer workers"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Initialise a worker: it exits as soon as its parent is gone, even if that was killed."""
    parent = multiprocessing.parent_process()

    def exit_after_parent() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


@contextmanager
def _child_environment() -> Iterator[None]:
    """Processes that start inside use one thread, so that bytes do not depend on the number of cores, and
    ignore SIGINT, which a terminal sends to all processes: the parent terminates them."""
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
