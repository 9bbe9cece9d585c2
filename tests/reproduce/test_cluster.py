"""Runs on several worker processes: each once, also if a worker dies; and schedulers that do not answer."""

import json
import os
import signal
import threading
import time

import pytest

from linearno.reproduce.cells import Selection
from linearno.reproduce.cluster import device_of_worker, execute_distributed
from linearno.reproduce.dask_client import connect
from linearno.reproduce.execute import OutOfTime
from linearno.reproduce.items import cells_of
from linearno.reproduce.plan import pending, stored_records
from tests.commands import linearno, refused
from tests.reproduce.small_runs import TINY

pytestmark = pytest.mark.slow
EPOCHS = 30
SELECTION = Selection(benchmarks=("elasticity",), epochs=EPOCHS, samples=(6, 3), changes=TINY)


def histories(out):
    return {
        path.parent.name: [json.loads(line)["epoch"] for line in path.read_text().splitlines()]
        for path in (out / "runs").glob("*/history.jsonl")
    }


def test_a_worker_that_is_killed_loses_nothing_and_nothing_runs_twice(tmp_path):
    pytest.importorskip("distributed")
    cells = cells_of("table4", SELECTION)
    planned = pending(cells, SELECTION, {})
    killed, said = [], []

    def kill_one(client):
        """As soon as a run has done some epochs, but not all."""
        while not killed:
            time.sleep(0.02)
            done = histories(tmp_path) if (tmp_path / "runs").exists() else {}
            if any(0 < len(epochs) < EPOCHS for epochs in done.values()):
                busy = [address for address, keys in client.processing().items() if keys]
                pids = client.run(os.getpid, workers=busy[:1])
                killed.extend(pids.values())
                os.kill(killed[0], signal.SIGKILL)

    with connect(None, 2) as client:
        killer = threading.Thread(target=kill_one, args=(client,), daemon=True)
        killer.start()
        failed = execute_distributed(
            client, planned, tmp_path, tmp_path / "records", "cpu", small=True, tell=said.append
        )
    assert failed == {}
    assert killed
    assert len(said) == len(planned) == 4
    assert set(stored_records(tmp_path / "records")) == {id for run in planned for id in run.ids}
    assert histories(tmp_path) == {run.name: list(range(1, EPOCHS + 1)) for run in planned}


def test_the_command_runs_several_jobs(tmp_path):
    pytest.importorskip("distributed")
    changes = [word for change in TINY for word in ("--set", change)]
    call = ["reproduce", "table6", "--benchmarks", "elasticity", "--epochs", 1, "--samples", 4, 2, *changes]
    code, output = linearno(*call, "--device", "cpu", "--out", tmp_path, "--jobs", 2)
    assert code == 0, output
    assert "4 of 4 cells filled" in output
    assert output.count("done: ") == 4


def test_what_a_cluster_cannot_do_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("linearno.reproduce.dask_client.CONNECT_SECONDS", 0.5)
    call = ["reproduce", "table6", "--benchmarks", "elasticity", "--device", "cpu", "--out", tmp_path]
    line = refused(*call, "--scheduler", "tcp://127.0.0.1:9")
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in line
    assert "give one of them" in refused(*call, "--jobs", 2, "--scheduler", "tcp://127.0.0.1:9")
    monkeypatch.setattr("linearno.core.optional_deps.find_spec", lambda package: None)
    assert "pip install 'linearno[cluster]'" in refused(*call, "--jobs", 2)


def test_generation_on_a_cluster_survives_a_killed_worker_and_gives_the_same_set(tmp_path):
    pytest.importorskip("distributed")
    call = ["data", "generate", "elasticity", "--train", 30, "--test", 10, "--device", "cpu"]
    code, output = linearno(*call, "--out", tmp_path / "here", "--workers", 1)
    assert code == 0, output
    killed = []

    def kill_one(client):
        """As soon as it has work."""
        while not killed:
            time.sleep(0.02)
            if busy := [address for address, keys in client.processing().items() if keys]:
                killed.extend(client.run(os.getpid, workers=busy[:1]).values())
                os.kill(killed[0], signal.SIGKILL)

    with connect(None, 2) as client:
        killer = threading.Thread(target=kill_one, args=(client,), daemon=True)
        killer.start()
        address = client.scheduler.address
        code, output = linearno(*call, "--out", tmp_path / "there", "--scheduler", address)
        killer.join()
    assert code == 0, output
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there")
    )
    assert here == there


def test_a_time_limit_stops_the_workers(tmp_path):
    pytest.importorskip("distributed")
    planned = pending(cells_of("table4", SELECTION), SELECTION, {})[:1]
    places = (planned, tmp_path, tmp_path / "records", "cpu")
    with connect(None, 1) as client, pytest.raises(OutOfTime):
        execute_distributed(client, *places, small=True, minutes=0.0, jobs=1, tell=print)
    assert stored_records(tmp_path / "records") == {}


def test_workers_take_the_gpus_of_a_machine_in_turn():
    assert [device_of_worker("cuda", n, 2) for n in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert device_of_worker("auto", 1, 0) == "auto"
    assert device_of_worker("cuda:1", 0, 2) == "cuda:1"
    assert device_of_worker("cpu", 0, 2) == "cpu"
