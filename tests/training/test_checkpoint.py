import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tiny_run import EVERYTHING, Tiny, at_forward, tiny_fit

from linearno.core.errors import UserError
from linearno.training import Interrupted, TrainingConfig, checkpoint
from linearno.training.history import read_history
from linearno.training.interrupt import stop_on_signals

SHORT = TrainingConfig(epochs=3, batch=4, schedule="constant")


@pytest.fixture
def stopped(tmp_path):
    """A run folder with the checkpoint of a run stopped in its second epoch."""
    model = at_forward(6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        tiny_fit(tmp_path, SHORT, model=model)
    return tmp_path


def refuses(folder, message, config=SHORT, **options):
    with pytest.raises(UserError, match=message) as error:
        tiny_fit(folder, config, **options)
    assert "\n" not in str(error.value)


def test_a_request_to_stop_disturbs_no_system_call():
    read, write = os.pipe()
    letter = ctypes.create_string_buffer(1)

    def send():  # by one thread: two timers of a busy host may fire in either order
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        os.write(write, b"x")

    with stop_on_signals() as stop:
        threading.Thread(target=send).start()
        assert ctypes.CDLL(None).read(read, letter, 1) == 1  # a library's own call: Python would ask again
    assert (letter.raw, stop.number) == (b"x", signal.SIGTERM)
    os.close(read)
    os.close(write)


def test_a_run_stops_properly_after_a_library_took_its_handlers(tmp_path):
    """As LLVM does where a kernel is compiled. In a process of its own, which else the signal would end."""
    code = f"""
import ctypes, os, pathlib, signal, tiny_run
model = tiny_run.at_forward(4, lambda: ctypes.CDLL(None).signal(signal.SIGTERM, None))
tiny_run.at_forward(5, lambda: os.kill(os.getpid(), signal.SIGTERM), model)
try:
    tiny_run.tiny_fit(pathlib.Path({str(tmp_path)!r}), model=model)
except tiny_run.Interrupted as stop:
    print(stop)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("stopped by SIGTERM in epoch 1 after step 3")
    assert (tmp_path / "checkpoint/latest").exists()


def test_a_checkpoint_is_one_folder_of_tensors_and_json(stopped):
    files = sorted(str(p.relative_to(stopped)) for p in stopped.rglob("*") if p.is_file())
    state = "checkpoint/step-00000006/state"
    assert files == ["checkpoint/latest", f"{state}.json", f"{state}.safetensors", "history.jsonl"]
    assert (stopped / "checkpoint/latest").read_text() == "step-00000006\n"


def test_only_the_latest_checkpoint_stays(tmp_path):
    tiny_fit(tmp_path, EVERYTHING)
    assert [p.name for p in (tmp_path / "checkpoint").glob("step-*")] == ["step-00000015"]


def test_checkpoints_come_every_so_many_epochs_and_at_the_end(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoint.Checkpoints, "write", lambda self, step, *_: written.append(step))
    tiny_fit(tmp_path, SHORT.model_copy(update={"epochs": 5, "checkpoint_epochs": 2}))
    assert written == [8, 16, 20]


def test_a_cut_file_of_tensors_is_refused(stopped):
    state = stopped / "checkpoint/step-00000006/state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    refuses(stopped, r"state\.safetensors is truncated.*remove the folder to train from the start")


def test_a_changed_bit_is_refused(stopped):
    state = stopped / "checkpoint/step-00000006/state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    refuses(stopped, r"state\.safetensors is not what was written there")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_json_is_refused(stopped, text):
    (stopped / "checkpoint/step-00000006/state.json").write_text(text)
    refuses(stopped, r"state\.json is not")


def test_a_pointer_to_nothing_is_refused(stopped):
    pointer = stopped / "checkpoint/latest"
    pointer.write_text("step-00000005\n")
    refuses(stopped, r"step-00000005/state\.json does not exist")
    pointer.write_text("../elsewhere\n")
    refuses(stopped, "latest names no checkpoint")


def test_another_format_is_refused(stopped):
    path = stopped / "checkpoint/step-00000006/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    refuses(stopped, "format 99, this version reads 1; resume it with the version that wrote it")


def test_another_configuration_is_refused_and_the_first_difference_named(stopped):
    other = SHORT.model_copy(update={"lr": 0.5, "clip": None})
    refuses(
        stopped,
        r"another configuration: training\.lr was 0\.001, now 0\.5; choose another --out or remove it",
        other,
    )
    refuses(stopped, r"another configuration: seed was 7, now 8", seed=8)
    refuses(stopped, r"another configuration: its data or its model differs", fingerprint="another")


def test_another_model_under_the_same_fingerprint_is_refused(stopped):
    wide = Tiny()
    wide.layers[0], wide.layers[3] = torch.nn.Linear(3, 99), torch.nn.Linear(99, 1)
    refuses(stopped, "the checkpoint does not fit this model", model=wide)


@pytest.mark.parametrize("broken", ["write_tensors", "write_json", "write_text"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch, broken):
    whole = tiny_fit(tmp_path / "whole", SHORT)
    write, calls = getattr(checkpoint, broken), []

    def die_at_the_second(path, content):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, broken, die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            tiny_fit(tmp_path / "killed", SHORT)
    assert (tmp_path / "killed/checkpoint/latest").read_text() == "step-00000004\n"
    assert len(read_history(tmp_path / "killed/history.jsonl")) == 2  # one more than the checkpoint
    resumed = tiny_fit(tmp_path / "killed", SHORT)
    assert torch.equal(resumed.layers[0].weight, whole.layers[0].weight)
    assert [r.epoch for r in read_history(tmp_path / "killed/history.jsonl")] == [1, 2, 3]
    assert len(list((tmp_path / "killed/checkpoint").iterdir())) == 2


def test_a_line_of_history_cut_short_is_written_again(stopped):
    with (stopped / "history.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    tiny_fit(stopped, SHORT)
    assert [record.epoch for record in read_history(stopped / "history.jsonl")] == [1, 2, 3]


def test_a_new_run_forgets_the_history_of_one_that_left_no_checkpoint(tmp_path):
    tiny_fit(tmp_path / "a", SHORT)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/history.jsonl").write_text((tmp_path / "a/history.jsonl").read_text())
    tiny_fit(tmp_path / "b", SHORT)
    assert [record.epoch for record in read_history(tmp_path / "b/history.jsonl")] == [1, 2, 3]


class Killed(Exception):
    """Ends a run as a kill does: nothing is written any more."""


def kill():
    raise Killed


def test_a_killed_run_goes_on_within_a_long_epoch(tmp_path, monkeypatch):
    """An epoch is three steps; the fifth one is lost with the kill, the fourth is in the checkpoint."""
    whole = tiny_fit(tmp_path / "whole", EVERYTHING)
    monkeypatch.setattr(sys.modules["linearno.training.fit"], "LONG_EPOCH_SECONDS", 0.0)
    with pytest.raises(Killed):
        tiny_fit(tmp_path / "parts", EVERYTHING, model=at_forward(2 * 5, kill))
    assert (tmp_path / "parts/checkpoint/latest").read_text() == "step-00000004\n"
    again = tiny_fit(tmp_path / "parts", EVERYTHING)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_a_deadline_stops_a_run_in_any_thread_as_a_signal_does(tmp_path):
    whole, stops = tiny_fit(tmp_path / "whole", SHORT), []

    def stopped():
        with pytest.raises(Interrupted) as stop:
            tiny_fit(tmp_path / "parts", SHORT, deadline=time.monotonic() - 1)
        stops.append(stop.value)

    thread = threading.Thread(target=stopped)
    thread.start()
    thread.join()
    assert [(stop.epoch, stop.step) for stop in stops] == [(1, 1)]
    again = tiny_fit(tmp_path / "parts", SHORT)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
