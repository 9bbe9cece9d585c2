import os
import signal

import pytest
import torch
from tiny_run import EVERYTHING, Tiny, at_forward, checked_setup, tiny_fit

from linearno import CrossLinearNO, LinearNO, Transolver
from linearno.core.cuda_graph import CapturedFunction
from linearno.core.errors import UserError
from linearno.data import FieldData, FieldSpec, Scaler
from linearno.ops import backend
from linearno.training import Completion, Interrupted, LossConfig, Rollout, Timed, TrainingConfig, fit
from linearno.training.history import read_history
from linearno.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("capture", [True, False])
def test_no_step_waits_for_the_device(tmp_path, monkeypatch, precision, capture):
    step, epochs = Trainer.step, []

    def watched(trainer, index):
        early = trainer.state.epoch < 2  # warm-up and capture may wait
        torch.cuda.set_sync_debug_mode("default" if early else "error")
        step(trainer, index)
        torch.cuda.set_sync_debug_mode("default")
        epochs.append(trainer.state.epoch)

    monkeypatch.setattr(Trainer, "step", watched)
    tiny_fit(
        tmp_path, EVERYTHING.model_copy(update={"precision": precision, "capture": capture}), device=CUDA
    )
    assert max(epochs) == 4


def losses_of(folder, model, **changes):
    """Losses by epoch of a run on a small Darcy-like set, whose last batches are ragged."""
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), grid=(9, 8), standardised=("outputs",))
    generator = torch.Generator().manual_seed(1)
    coords, inputs = (torch.rand(shape, generator=generator) for shape in ((72, 2), (14, 72, 1)))
    data = FieldData(spec, coords, inputs, 1 + inputs.square() * coords[:, :1])
    config = TrainingConfig(epochs=6, batch=4, loss=LossConfig(gradient_weight=0.1), **changes)
    torch.manual_seed(0)
    built = model(
        coords=2, inputs=1, outputs=1, width=32, depth=2, heads=2, slices=8, stem="conv", grid=(9, 8)
    )
    scaler = Scaler.fit(spec, data.everything())
    setup = checked_setup(built, scaler, data, config, seed=3)
    fit(setup, device=CUDA, folder=folder, fingerprint="")
    return [record.loss for record in read_history(folder / "history.jsonl")]


@pytest.mark.parametrize("model", [LinearNO, Transolver])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_run_has_the_loss_curve_of_an_eager_one(tmp_path, model, precision):
    captured = losses_of(tmp_path / "captured", model, precision=precision)
    eager = losses_of(tmp_path / "eager", model, precision=precision, capture=False)
    assert captured == pytest.approx(eager, rel=1e-5)
    with backend("plain"):
        plain = losses_of(tmp_path / "plain", model, precision=precision, capture=False)
    assert captured == pytest.approx(plain, rel=2e-4 if precision == "fp32" else 5e-2)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    "task",
    [Rollout(), Rollout(forcing="none"), Timed(), Timed(updates="batch"), Completion(ratio=0.3)],
    ids=str,
)
def test_every_task_has_the_loss_curve_of_the_cpu(tmp_path, task, capture):
    """Frames that follow each other or have a time, or a field to complete; the host draws for both."""
    completes, told = isinstance(task, Completion), {"time": True} if isinstance(task, Timed) else {}
    names = () if completes else ("a", "b", "c")
    spec = FieldSpec(coords=("x", "y"), inputs=names, outputs=("u",) if completes else ("d", "e"))
    generator = torch.Generator().manual_seed(1)
    coords = torch.rand(72, 2, generator=generator)
    frames = torch.rand(14, 1, 1, generator=generator) * torch.sin(3 * coords[:, :1] + torch.arange(5) / 3)
    inputs, targets = (None, frames[..., :1]) if completes else (frames[..., :3], frames[..., 3:])
    data = FieldData(spec, coords, inputs, targets)
    config = TrainingConfig(epochs=6, batch=4, capture=capture)
    curves = []
    for device in (CUDA, torch.device("cpu")):
        torch.manual_seed(0)
        sizes = {"coords": 2, "inputs": len(names) or 1, "outputs": 1}
        kind = CrossLinearNO if completes else LinearNO
        built = kind(**sizes, width=32, depth=2, heads=2, slices=8, **told)
        asked, folder = task.spec(spec), tmp_path / device.type
        scaler = Scaler.fit(asked, task.scaling_batch(data.everything(), asked))
        setup = checked_setup(built, scaler, data, config, seed=3, task=task)
        fit(setup, device=device, folder=folder, fingerprint="")
        curves.append([record.loss for record in read_history(folder / "history.jsonl")])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


@pytest.mark.parametrize("model", [LinearNO, Transolver])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_runs_agree_to_the_bit(tmp_path, model, precision):
    first, second = (losses_of(tmp_path / name, model, precision=precision) for name in "ab")
    assert first == second


def test_an_interrupted_run_continues_as_an_uninterrupted_one(tmp_path):
    whole = tiny_fit(tmp_path / "whole", device=CUDA)
    model = at_forward(9, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        tiny_fit(tmp_path / "parts", model=model, device=CUDA)
    resumed = tiny_fit(tmp_path / "parts", model=Tiny(seed=99), device=CUDA)
    for left, right in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert left.is_cuda
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("at", [1, 4, 6])  # the fourth is the last of an epoch
def test_a_run_that_is_stopped_between_replays_continues_as_if_it_was_not(tmp_path, monkeypatch, at):
    whole = losses_of(tmp_path / "whole", LinearNO, precision="bf16")
    replay, done = CapturedFunction.__call__, []

    def stopped(captured):
        done.append(1)
        if len(done) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return replay(captured)

    monkeypatch.setattr(CapturedFunction, "__call__", stopped)
    with pytest.raises(Interrupted):
        losses_of(tmp_path / "parts", LinearNO, precision="bf16")
    resumed = losses_of(tmp_path / "parts", LinearNO, precision="bf16")
    assert resumed == pytest.approx(whole, rel=1e-5)


def test_a_loss_that_is_not_finite_is_found_before_any_checkpoint(tmp_path):
    def poison():
        with torch.no_grad():
            model.layers[0].weight.fill_(torch.nan)

    model = at_forward(9, poison)  # two forwards a step, three steps an epoch
    with pytest.raises(UserError, match=r"epoch 2, step 2"):
        tiny_fit(tmp_path, EVERYTHING.model_copy(update={"capture": False}), model=model, device=CUDA)
    assert [record.epoch for record in read_history(tmp_path / "history.jsonl")] == [1]
    assert (tmp_path / "checkpoint/latest").read_text() == "step-00000003\n"
