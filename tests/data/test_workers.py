import os
import signal
import time

import pytest

from linearno.core.errors import UserError
from linearno.data.generation.workers import THREADS, process_map
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow


def slower_when_first(job: int) -> tuple[int, str]:
    os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C is for the parent
    time.sleep(0.2 if job == 0 else 0)
    return job, os.environ["OMP_NUM_THREADS"]


def endless_after_first(job: int) -> int:
    time.sleep(PATIENCE if job else 0)
    return job


def fall(job: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_order_from_processes_of_one_thread_that_are_deaf_to_ctrl_c(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = {name: os.environ.get(name) for name in THREADS}
    assert list(process_map(slower_when_first, range(9), workers=2)) == [(job, "1") for job in range(9)]
    assert {name: os.environ.get(name) for name in THREADS} == before


def test_closing_ends_a_worker_in_the_middle_of_its_work():
    results = process_map(endless_after_first, range(3), workers=1)
    assert next(results) == 0
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < PATIENCE / 2


def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do():
    with pytest.raises(UserError, match=r"was killed.*run the same command again"):
        list(process_map(fall, range(3), workers=1))


def test_no_jobs_start_no_process():
    assert list(process_map(fall, [], workers=2)) == []
