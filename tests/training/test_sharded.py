"""Points of one mesh on several processes: values and gradients are those of one process with all points."""

import os
import subprocess
import sys

import pytest
import sharded_run
import torch
from sharded_run import CUTS, LOSSES, MODELS, RUNS, answers, lively, own_parts, question, streamed, trained
from test_parallel import TORCHRUN, free_port, losses, tensors

from linearno import LinearNO
from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec, Scaler
from linearno.experiment import run
from linearno.ops import State, merge_ranks
from linearno.training import Completion, LossConfig, Task, TrainingConfig, TrainingSetup, parallel
from linearno.training.setup import require_shardable
from tests.conftest import TINY
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

PROCESSES = 4


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What four processes left of all scenarios."""
    folder = tmp_path_factory.mktemp("sharded")
    common = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        subprocess.Popen(
            [sys.executable, sharded_run.__file__, str(folder)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    for process in processes:
        try:
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == 0, errors
    return folder


@pytest.mark.parametrize("count", CUTS)
@pytest.mark.parametrize("name", MODELS)
def test_value_and_every_gradient_are_those_of_all_points_together(played, name, count):
    loss = list(LOSSES)[list(MODELS).index(name) % len(LOSSES)]
    whole = answers(name, loss, question())
    parts = [tensors(played, f"{name}-{count}-{rank}") for rank in range(count)]
    assert any(key.startswith("weight.") for key in whole)
    for key in ("out", "coords", "inputs"):
        together = torch.cat([part.pop(key) for part in parts], dim=1)
        torch.testing.assert_close(together, whole.pop(key).detach(), rtol=1e-9, atol=1e-12)
    for part in parts:
        torch.testing.assert_close(part, {k: v.detach() for k, v in whole.items()}, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", CUTS)
def test_processes_may_stream_the_points_they_hold(played, count):
    parts = [tensors(played, f"stream-{count}-{rank}")["out"] for rank in range(count)]
    with torch.no_grad():
        whole = lively("transolver")(*question()[:2])
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-12)
    assert streamed(own_parts(count, 0))["out"].shape == parts[0].shape


@pytest.mark.parametrize("name", RUNS)
def test_two_replicas_of_two_shards_train_as_one_process(played, tmp_path, name):
    one = trained(tmp_path, name, shards=1)
    for rank in range(PROCESSES):
        torch.testing.assert_close(tensors(played, f"train-{name}-{rank}"), one, rtol=1e-9, atol=1e-12)
    for left, right in zip(losses(played / name), losses(tmp_path), strict=True):
        assert left == pytest.approx(right, rel=1e-6)


def test_torchrun_trains_on_meshes_in_two_parts(tiny_config, darcy_folder, tmp_path):
    changes = ["model.stem=linear", "training.precision=fp32", "training.loss.gradient_weight=0"]
    shared = [*TINY, f"data.root={darcy_folder}", *changes, "training.shards=2"]
    train = ["-m", "linearno", "train", "darcy/linearno", "--device", "cpu", "--out", tmp_path / "two"]
    words = [word for change in shared for word in ("--set", change)]
    done = subprocess.run([*TORCHRUN, *train, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("2 processes share the points of each sample") == 1
    one = run(tiny_config("darcy/linearno", *changes), tmp_path / "one", torch.device("cpu"))
    two = read_json(tmp_path / "two/metrics.json", how="")
    assert two["relative_l2"]["mean"] == pytest.approx(one["relative_l2"]["mean"], rel=1e-3)


def test_outside_a_group_a_state_stays_as_it_is():
    state = State(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 4))
    assert merge_ranks(state) is state


def test_what_needs_more_than_points_is_not_sharded():
    sizes = {"coords": 2, "inputs": 1, "outputs": 1, "width": 8, "depth": 1, "heads": 2, "slices": 3}
    config, free = TrainingConfig(shards=2), LinearNO(**sizes)
    meshes = [Batch(torch.rand(n, 2), torch.rand(n, 1), torch.rand(n, 1)) for n in (4, 5)]
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))
    data = FieldData(spec, *(part[None] for part in meshes[0][:3]))

    def check(model, config, task, data):
        require_shardable(TrainingSetup(model, Scaler.blank(spec), data, config, task=task))

    check(free, config, Task(), data)
    with pytest.raises(UserError, match=r"training\.shards=2: a model tied to a grid"):
        check(LinearNO(**sizes, stem="conv", grid=(3, 4)), config, Task(), data)
    with pytest.raises(UserError, match="task=completion observes points of the whole sample"):
        check(free, config, Completion(), data)
    slopes = TrainingConfig(shards=2, loss=LossConfig(gradient_weight=0.1))
    with pytest.raises(UserError, match="slopes need neighbours"):
        check(free, slopes, Task(), data)
    with pytest.raises(UserError, match="meshes of different sizes are not spread over processes"):
        check(free, config, Task(), FieldData.pack(spec, meshes))
    with pytest.raises(UserError, match=r"training\.points=3 are not spread"):
        check(free, TrainingConfig(shards=2, points=3), Task(), data)
    with pytest.raises(
        UserError, match="needs 2 processes or a multiple of them, not 1; start them with torch"
    ):
        parallel.process_grid(2)
