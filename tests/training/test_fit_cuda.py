import os
import signal

import pytest
import torch
from tiny_run import EVERYTHING, Tiny, at_forward, tiny_fit

from linearno.core.errors import UserError
from linearno.training import Interrupted
from linearno.training.fit import _Run
from linearno.training.history import read_history

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_no_step_waits_for_the_device(tmp_path, monkeypatch, precision):
    step, epochs = _Run._step, []

    def watched(run, index):
        torch.cuda.set_sync_debug_mode("error" if run.state.epoch else "default")  # the first epoch warms up
        step(run, index)
        torch.cuda.set_sync_debug_mode("default")
        epochs.append(run.state.epoch)

    monkeypatch.setattr(_Run, "_step", watched)
    tiny_fit(tmp_path, EVERYTHING.model_copy(update={"precision": precision}), device=CUDA)
    assert max(epochs) == 4


def test_an_interrupted_run_goes_on_as_an_uninterrupted_one(tmp_path):
    whole = tiny_fit(tmp_path / "whole", device=CUDA)
    model = at_forward(9, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        tiny_fit(tmp_path / "parts", model=model, device=CUDA)
    resumed = tiny_fit(tmp_path / "parts", model=Tiny(seed=99), device=CUDA)
    for left, right in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert left.is_cuda
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_is_found_before_any_checkpoint(tmp_path):
    def poison():
        with torch.no_grad():
            model.layers[0].weight.fill_(torch.nan)

    model = at_forward(9, poison)  # two forwards a step, three steps an epoch
    with pytest.raises(UserError, match=r"epoch 2, step 2"):
        tiny_fit(tmp_path, model=model, device=CUDA)
    assert [record.epoch for record in read_history(tmp_path / "history.jsonl")] == [1]
    assert (tmp_path / "checkpoint/latest").read_text() == "step-00000003\n"
