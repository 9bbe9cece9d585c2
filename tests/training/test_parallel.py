import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import parallel_run
import pytest
import torch
from parallel_run import CASES, exact_fit, run_case
from tiny_run import EVERYTHING, at_forward

from linearno import load
from linearno.core.atomic_io import read_json, read_tensors, write_json
from linearno.core.errors import UserError
from linearno.experiment import run
from linearno.training import Interrupted, parallel
from linearno.training.history import read_history
from tests.conftest import TINY
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def free_port() -> str:
    """Below the range that systems give to outgoing connections, which could take it before it is used."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(20_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return str(port)


def start(folder: Path, *scenarios: str) -> list[subprocess.Popen]:
    """Two processes, with the environment that torchrun gives them."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        subprocess.Popen(
            [sys.executable, parallel_run.__file__, str(folder), *scenarios],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def ends(process: subprocess.Popen) -> tuple[int, str]:
    """Its exit code, and what it said; killed where it hangs."""
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, errors


def tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(folder / f"{name}.safetensors", how="")


def losses(folder: Path) -> list[dict]:
    changing = {"seconds", "samples_per_second", "processes"}
    return [record.model_dump(exclude=changing) for record in read_history(folder / "history.jsonl")]


def assert_same_bits(left, right):
    torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What two processes left of all scenarios; the third goes on with a run of one process."""
    folder = tmp_path_factory.mktemp("parallel")
    alone = at_forward(9, lambda: os.kill(os.getpid(), signal.SIGTERM))  # six forwards an epoch
    with pytest.raises(Interrupted):
        exact_fit(folder / "go_on", EVERYTHING, model=alone)
    processes = start(folder, "equal", "signals", "go_on", "other_weights", "not_finite", "hang")
    for rank, (code, errors) in enumerate(map(ends, processes)):
        assert code == 2, errors  # the last scenario breaks the group
        write_json(folder / "hang" / f"error-{rank}.json", errors)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_steps_and_weights_of_one(played, tmp_path, case):
    """Losses and gradient norms of every step are kept in float32, weights are in float64."""
    one, two = run_case(tmp_path, case), tensors(played / "equal", f"{case}-0")
    torch.testing.assert_close(two.pop("steps"), one.pop("steps"), rtol=1e-6, atol=0)
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_both_processes_hold_the_same_bits(played, case):
    first, second = (tensors(played / "equal", f"{case}-{rank}") for rank in range(2))
    assert_same_bits(first, second)


@pytest.mark.parametrize("case", ["all", "mean-accumulate"])
def test_the_history_is_that_of_one_process(played, tmp_path, case):
    run_case(tmp_path, case)
    two, one = losses(played / "equal" / case), losses(tmp_path)
    assert len(two) == EVERYTHING.epochs
    for left, right in zip(two, one, strict=True):
        assert left == pytest.approx(right, rel=1e-6)


def test_a_signal_to_one_process_stops_all_at_the_same_step(played):
    stops = [read_json(played / "signals/parts" / f"stop-{rank}.json", how="") for rank in range(2)]
    assert stops == [[signal.SIGTERM, 2, 2]] * 2  # epoch 2, step 2: five forwards an epoch, two a step


def test_two_processes_resumed_equal_two_uninterrupted_to_the_bit(played):
    folder = played / "signals"
    assert_same_bits(tensors(folder, "parts-0"), tensors(folder, "whole-0"))
    assert losses(folder / "parts") == losses(folder / "whole")


def test_a_run_goes_from_one_process_to_two_and_back(played, tmp_path):
    folder = played / "go_on"
    stops = [read_json(folder / f"stop-{rank}.json", how="") for rank in range(2)]
    assert stops == [[signal.SIGINT, 4, 1]] * 2  # from step 2 of epoch 2 on, six forwards an epoch
    back, whole = exact_fit(folder, EVERYTHING), exact_fit(tmp_path, EVERYTHING)
    torch.testing.assert_close(back.state_dict(), whole.state_dict(), rtol=1e-9, atol=1e-12)
    assert [record.processes for record in read_history(folder / "history.jsonl")] == [1, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("scenario", "complaint"),
    [
        ("other_weights", "do not start from the same weights"),
        ("not_finite", "not finite at epoch 2, step 2"),  # in one process alone
        ("hang", "another process stopped or does not answer"),
    ],
)
def test_what_goes_wrong_in_one_process_ends_all_with_a_message(played, scenario, complaint):
    errors = [read_json(played / scenario / f"error-{rank}.json", how="") for rank in range(2)]
    assert all(complaint in error for error in errors), errors


@pytest.fixture(scope="module")
def command(darcy_folder):
    changes = [*TINY, f"data.root={darcy_folder}", "training.batch=5", "training.precision=fp32"]
    train = ["-m", "linearno", "train", "darcy/linearno", "--device", "cpu"]
    return [*TORCHRUN, *train, *(word for change in changes for word in ("--set", change))]


def test_torchrun_writes_one_run_folder_and_speaks_once(command, tiny_config, tmp_path):
    done = subprocess.run([*command, "--out", tmp_path / "two"], check=True, capture_output=True, text=True)
    assert done.stdout.count("test relative L2") == 1
    assert done.stderr.count("2 processes share every batch (gloo)") == 1
    one = run(
        tiny_config("darcy/linearno", "training.batch=5", "training.precision=fp32"),
        tmp_path / "one",
        torch.device("cpu"),
    )
    files = [
        {path.relative_to(tmp_path / run) for path in (tmp_path / run).rglob("*")} for run in ("one", "two")
    ]
    assert files[0] == files[1]
    two = json.loads((tmp_path / "two/metrics.json").read_text())
    assert two["relative_l2"]["mean"] == pytest.approx(one["relative_l2"]["mean"], rel=1e-4)
    first, second = (load(tmp_path / run).model.state_dict() for run in ("one", "two"))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


def test_ctrl_c_on_torchrun_leaves_one_checkpoint_of_the_step_where_all_stopped(command, tmp_path):
    long = [*command, "--set", "training.epochs=2000", "--out", tmp_path / "run"]
    process = subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    history, deadline = tmp_path / "run/history.jsonl", time.monotonic() + PATIENCE
    while process.poll() is None and not (history.exists() and history.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, errors = ends(process)
    assert code != 0
    assert errors.count("the same command resumes") == 1, errors
    (checkpoint,) = (tmp_path / "run/checkpoint").glob("step-*")
    values = read_json(checkpoint / "state.json", how="")["values"]
    assert values["epoch"] == len(losses(tmp_path / "run"))


@pytest.mark.parametrize(
    ("device", "complaint"),
    [
        ("cuda:0", "'cuda:0' is one GPU for 2 processes; use --device cuda"),
        ("cuda", "2 processes need as many GPUs, this machine has 1; start fewer"),
    ],
)
def test_every_process_needs_a_gpu_of_its_own(monkeypatch, device, complaint):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=complaint):
        parallel._own_device(device)


def test_half_an_environment_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match=r"MASTER_ADDR.*start them with torchrun"), parallel.processes("cpu"):
        pass


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_shares_cover_a_batch_once_and_the_borrowed_sample_has_no_weight(monkeypatch, samples):
    index, shares = torch.randperm(20)[:samples], []
    monkeypatch.setattr(parallel, "size", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        shares.append(parallel.shard_batch(index))
    assert torch.equal(torch.cat([share.index[: share.own] for share in shares]), index)
    assert all(len(share.index) >= 1 and share.joint == samples for share in shares)
    assert max(share.own for share in shares) - min(share.own for share in shares) <= 1
    assert max(len(part) for share in shares for part in share.parts(4)) <= 2
