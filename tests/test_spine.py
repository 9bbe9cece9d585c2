"""How far it is from `run` to the model, and how many files a training step and the test pass through."""

import sys
from contextlib import contextmanager
from pathlib import Path

import torch

import linearno
from linearno import experiment
from linearno.experiment import run
from linearno.inference.bundle import Bundle
from linearno.training.trainer import Trainer

CPU = torch.device("cpu")
PACKAGE = str(Path(linearno.__file__).parent)
ONE_STEP = ("training.epochs=1", "training.batch=24")


def in_package(frame) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


@contextmanager
def profiled(note):
    """Call `note(frame)` for every call of a function of this package."""
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: note(frame) if event == "call" and in_package(frame) else None)
    try:
        yield
    finally:
        sys.setprofile(before)


def profile_calls(monkeypatch, note, *functions):
    for owner, name in functions:
        function = getattr(owner, name)

        def call(*arguments, function=function, **named):
            with profiled(note):
                return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)


def test_there_are_at_most_six_frames_from_run_to_forward(tiny_config, tmp_path):
    """Counted with both ends: run, fit, step, update, predict_batch, forward."""
    stacks = []

    def note(frame):
        if frame.f_code.co_qualname == "PointTransformer.forward" and frame.f_locals["self"].training:
            stacks.append([])
            while frame is not None:
                stacks[-1] += [frame.f_code.co_qualname] if in_package(frame) else []
                frame = frame.f_back

    with profiled(note):
        run(tiny_config("darcy/linearno", *ONE_STEP), tmp_path, CPU)
    (stack,) = stacks
    assert stack[-1] == "run"
    assert len(stack) <= 6, stack


def test_a_training_step_and_the_test_pass_through_at_most_25_files(tiny_config, tmp_path, monkeypatch):
    """From the first draw to the changed weights, and from the test samples to their errors."""
    files = set()
    parts = [(Trainer, "step"), (Bundle, "predict_data"), (experiment, "score")]
    profile_calls(monkeypatch, lambda frame: files.add(frame.f_code.co_filename), *parts)
    run(tiny_config("darcy/linearno", *ONE_STEP), tmp_path, CPU)
    names = sorted(name.removeprefix(PACKAGE) for name in files)
    assert {"/training/trainer.py", "/nn/transformer.py", "/metrics/norms.py"} <= set(names)
    assert len(names) <= 25, names


def test_every_check_is_made_once(tiny_config, tmp_path, monkeypatch):
    checks = ["Task.require_packed", "TrainingSetup.check", "require_loss", "split_validation"]
    called = []
    with profiled(lambda frame: called.append(frame.f_code.co_qualname)):
        run(tiny_config("darcy/linearno", *ONE_STEP), tmp_path, CPU)
    assert sorted(name for name in called if name in checks) == checks
