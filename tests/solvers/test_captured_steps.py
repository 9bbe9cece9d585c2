"""A recorded step is the step."""

import os
import shutil

import pytest
import torch

from linearno.solvers import captured_steps as recording

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fuse", [False, True])
def test_a_recorded_step_is_the_step_and_begins_where_the_state_was(fuse):
    place, velocity = torch.arange(6.0, dtype=torch.float64).view(2, 3), torch.ones(2, 3, dtype=torch.float64)

    def step() -> None:
        velocity.sub_(place, alpha=0.1)
        place.add_(velocity, alpha=0.1)

    advance = recording.capture_step(step, [place, velocity], fuse=[place, velocity] if fuse else ())
    true = place.clone(), velocity.clone()
    assert torch.equal(true[0], torch.arange(6.0, dtype=torch.float64).view(2, 3))
    for _ in range(5):
        advance()
        true[1].sub_(true[0], alpha=0.1)
        true[0].add_(true[1], alpha=0.1)
    torch.testing.assert_close((place, velocity), true, rtol=1e-14, atol=1e-14)


def test_a_step_that_cannot_be_compiled_runs_as_it_is(caplog):
    def step() -> None:
        with open(os.devnull):  # nothing that a compiler could make kernels of
            pass

    assert recording._compile(step, []) is step
    assert "torch.compile failed" in caplog.text


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_step_is_compiled_once_for_all_numbers_of_samples(caplog):
    class Fall:
        def __init__(self, samples):
            self.place = torch.ones(samples, 3, dtype=torch.float64)

        def step(self):
            self.place.mul_(0.5)

    compiled = torch._dynamo.utils.counters["stats"]
    for samples, graphs in ((2, 1), (5, 0)):
        fall, before = Fall(samples), compiled["unique_graphs"]
        recording.capture_step(fall.step, [fall.place], fuse=[fall.place])()
        assert compiled["unique_graphs"] - before == graphs
        assert fall.place.eq(0.5).all()
    assert "not compiled" not in caplog.text
