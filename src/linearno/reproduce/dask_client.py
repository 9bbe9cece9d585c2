"""Clients of Dask distributed (extra `cluster`), and maps over their workers."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from linearno.core.device import available_cores
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.data import Benchmark
from linearno.data.benchmark import Generate
from linearno.data.generation.generate import DataGenerator

CONNECT_SECONDS = 10
MAX_LOST_WORKERS = 5  # of one task, on a cluster that we start
J = TypeVar("J")
R = TypeVar("R")


@contextmanager
def connect(scheduler: str | None, jobs: int) -> Iterator[Any]:
    """A Dask client: of the scheduler at an address, or of `jobs` new processes on this machine."""
    require_extra("distributed", "cluster")
    import dask
    from distributed import Client, LocalCluster

    if scheduler is None:
        settings = {"distributed.scheduler.allowed-failures": MAX_LOST_WORKERS}
        workers = {"n_workers": jobs, "threads_per_worker": 1, "memory_limit": 0}
        with (
            dask.config.set(settings),
            LocalCluster(dashboard_address=None, **workers) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"no Dask scheduler answers at {scheduler} ({reason}); start one with `dask scheduler`, "
            "or leave --scheduler out"
        ) from None
    with client:
        yield client


def task_map(client: Any) -> Callable[[Callable[[J], R], Sequence[J]], Generator[R, None, None]]:
    """`map` on the workers of a Dask client, with results in order; a task of a lost worker runs again."""

    def run(work: Callable[[J], R], jobs: Sequence[J]) -> Generator[R, None, None]:
        tasks = client.map(work, jobs, pure=False)
        try:
            for place in range(len(tasks)):
                yield tasks[place].result()
        finally:
            client.cancel(tasks)

    return run


@contextmanager
def solver_on(scheduler: str | None, benchmark: Benchmark) -> Iterator[tuple[Generate | None, int]]:
    """`benchmark.generate` and the number of its workers: on this machine, or on those of a cluster."""
    if scheduler is None:
        yield benchmark.generate, available_cores()
        return
    if not isinstance(benchmark.generate, DataGenerator):
        raise UserError("only solvers made with DataGenerator run on a cluster: leave --scheduler out")
    with connect(scheduler, 1) as client:
        workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
        yield partial(benchmark.generate, map_batches=task_map(client)), workers
