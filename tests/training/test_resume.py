import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiny_run
import torch
from tiny_run import EVERYTHING, Tiny, at_forward, tiny_fit

from linearno.core.atomic_io import read_tensors
from linearno.training import Interrupted, TrainingConfig
from linearno.training.history import read_history

pytestmark = pytest.mark.slow

STEPS, FORWARDS = 3, 6  # of an epoch of EVERYTHING: forwards of 2 samples, two a step, 3 in the last
MINIMAL = TrainingConfig(epochs=4, batch=5, schedule="constant", clip=None, checkpoint_epochs=3)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def losses(folder):
    """The history but for its timings."""
    timings = {"seconds", "samples_per_second"}
    return [record.model_dump(exclude=timings) for record in read_history(folder / "history.jsonl")]


def interrupt(folder, config, forward, number=signal.SIGINT):
    model = at_forward(forward, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted) as stop:
        tiny_fit(folder, config, model=model)
    return stop.value


def test_two_runs_with_one_seed_agree_to_the_bit(tmp_path):
    first = tiny_fit(tmp_path / "a")
    model = Tiny()
    torch.rand(17)  # what was drawn before a run does not matter
    second = tiny_fit(tmp_path / "b", model=model)
    assert_same_bits(weights(first), weights(second))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_another_seed_gives_other_weights(tmp_path):
    first, second = (tiny_fit(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    assert not torch.equal(weights(first)["layers.0.weight"], weights(second)["layers.0.weight"])


@pytest.mark.parametrize("config", [EVERYTHING, MINIMAL], ids=["everything", "minimal"])
@pytest.mark.parametrize("forward", [2, 6, 9])
def test_interrupted_and_resumed_equals_uninterrupted_to_the_bit(tmp_path, config, forward):
    whole = tiny_fit(tmp_path / "whole", config)
    interrupt(tmp_path / "parts", config, forward)
    resumed = tiny_fit(tmp_path / "parts", config, model=Tiny(seed=99))  # its own weights do not matter
    assert_same_bits(weights(resumed), weights(whole))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_run_interrupted_at_every_step_equals_an_uninterrupted_one(tmp_path):
    whole = tiny_fit(tmp_path / "whole")
    stops = [interrupt(tmp_path / "parts", EVERYTHING, 1) for _ in range(STEPS * EVERYTHING.epochs)]
    assert [(stop.epoch, stop.step) for stop in stops] == [(e, s) for e in range(1, 6) for s in range(1, 4)]
    assert_same_bits(weights(tiny_fit(tmp_path / "parts")), weights(whole))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_the_best_epoch_before_an_interruption_is_still_the_result(tmp_path):
    config = TrainingConfig(epochs=12, batch=4, lr=0.3, clip=None, schedule="constant", validation=3)
    whole = tiny_fit(tmp_path / "whole", config)  # 3 steps an epoch, at a rate so high that it wanders
    errors = [record["validation"] for record in losses(tmp_path / "whole")]
    best = errors.index(min(errors))
    assert best < 11
    interrupt(tmp_path / "parts", config, 3 * (best + 1) + 2)
    assert_same_bits(weights(tiny_fit(tmp_path / "parts", config)), weights(whole))


def test_an_interruption_in_the_last_step_of_an_epoch_closes_it(tmp_path):
    stop = interrupt(tmp_path, EVERYTHING, FORWARDS)
    assert (stop.epoch, stop.step) == (1, STEPS)
    assert [record["epoch"] for record in losses(tmp_path)] == [1]


def test_an_interruption_names_signal_and_place_and_how_to_go_on(tmp_path):
    stop = interrupt(tmp_path, EVERYTHING, FORWARDS + 3, signal.SIGTERM)
    assert (stop.signal, stop.epoch, stop.step) == (signal.SIGTERM, 2, 2)
    assert str(stop) == "stopped by SIGTERM in epoch 2 after step 2; the same command resumes"


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tiny_fit(tmp_path, model=at_forward(3, twice))


def test_signal_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupt(tmp_path, EVERYTHING, 2)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_it_trains_in_another_thread_too(tmp_path):
    done = []
    thread = threading.Thread(target=lambda: done.append(tiny_fit(tmp_path / "thread")))
    thread.start()
    thread.join()
    assert_same_bits(weights(done[0]), weights(tiny_fit(tmp_path / "main")))


def test_a_finished_run_does_nothing_more_and_gives_its_result(tmp_path):
    finished = tiny_fit(tmp_path)
    history = (tmp_path / "history.jsonl").read_text()
    again = tiny_fit(tmp_path, model=at_forward(1, lambda: pytest.fail("it trains")))
    assert_same_bits(weights(again), weights(finished))
    assert (tmp_path / "history.jsonl").read_text() == history


def run(folder: Path, *request: str) -> int:
    return subprocess.run([sys.executable, tiny_run.__file__, str(folder), *request], check=False).returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder) == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_process_resumed_by_another_equals_an_uninterrupted_one(tmp_path, whole, number):
    died = -number if number == signal.SIGKILL else number
    assert run(tmp_path, number.name, str(2 * FORWARDS + 3)) == died
    assert len(losses(tmp_path)) == 2
    assert run(tmp_path) == 0
    final, expected = (read_tensors(f / "final.safetensors", how="") for f in (tmp_path, whole))
    assert_same_bits(final, expected)
    assert losses(tmp_path) == losses(whole)
