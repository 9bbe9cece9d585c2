import json
import math
from itertools import islice

import pytest
import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from linearno.training.checkpoint import load_optimizer, pack_optimizer
from linearno.training.config import TrainingConfig
from linearno.training.optimizer import Schedule, make_optimizer


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


def rates(optimizer, schedule, steps_per_epoch):
    """(lr, β₁) of every step, without end."""
    while True:
        for _ in range(steps_per_epoch):
            yield optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]
            optimizer.step()
            schedule.after_step()
        schedule.after_epoch()


def published_rates(model, epochs, steps_per_epoch):
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-6)
    schedule = OneCycleLR(optimizer, max_lr=1e-3, epochs=epochs, steps_per_epoch=steps_per_epoch)
    for _ in range(epochs * steps_per_epoch):
        yield optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]
        optimizer.step()
        schedule.step()


def test_onecycle_is_pytorchs_in_lr_and_beta(model):
    config = TrainingConfig()
    optimizer = make_optimizer(model, config)
    ours = list(islice(rates(optimizer, Schedule(optimizer, config, 3), 3), 3 * config.epochs))
    assert ours == list(published_rates(model, 500, 3))
    assert max(lr for lr, _ in ours) == pytest.approx(1e-3, rel=1e-4)
    assert min(beta for _, beta in ours) == pytest.approx(0.85, rel=1e-4)


def test_cosine_by_epoch_falls_to_zero_in_the_published_way(model):
    config = TrainingConfig(schedule="cosine", schedule_every="epoch", epochs=10)
    optimizer = make_optimizer(model, config)
    ours = [lr for lr, _ in islice(rates(optimizer, Schedule(optimizer, config, 3), 3), 30)]
    expected = [1e-3 * (1 + math.cos(math.pi * (step // 3) / 10)) / 2 for step in range(30)]
    assert ours == pytest.approx(expected)


def test_cosine_by_step_falls_at_every_step(model):
    config = TrainingConfig(schedule="cosine", epochs=4)
    optimizer = make_optimizer(model, config)
    ours = [lr for lr, _ in islice(rates(optimizer, Schedule(optimizer, config, 5), 5), 20)]
    assert ours == pytest.approx([1e-3 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)])


def test_constant_stays(model):
    config = TrainingConfig(schedule="constant", epochs=2)
    optimizer = make_optimizer(model, config)
    assert set(islice(rates(optimizer, Schedule(optimizer, config, 3), 3), 6)) == {(1e-3, 0.9)}


def test_onecycle_rises_for_the_given_part_of_the_run(model):
    config = TrainingConfig(epochs=10, warmup=0.1)
    optimizer = make_optimizer(model, config)
    ours = [lr for lr, _ in islice(rates(optimizer, Schedule(optimizer, config, 10), 10), 100)]
    assert ours.index(max(ours)) == 9  # PyTorch counts steps from 0 and ends the rise at 0.1 · 100 − 1


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_step_falls_by_a_factor_every_so_many_epochs(model, every):
    config = TrainingConfig(schedule="step", schedule_every=every, epochs=7, decay=0.7, decay_epochs=2)
    optimizer = make_optimizer(model, config)
    ours = [lr for lr, _ in islice(rates(optimizer, Schedule(optimizer, config, 3), 3), 21)]
    assert ours == pytest.approx([1e-3 * 0.7 ** (step // 6) for step in range(21)])


@pytest.mark.parametrize("kind", ["onecycle", "cosine", "step", "constant"])
@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_schedule_continues_exactly_after_a_trip_through_json(model, kind, every):
    config = TrainingConfig(schedule=kind, schedule_every=every, epochs=6)
    optimizer = make_optimizer(model, config)
    schedule = Schedule(optimizer, config, 4)
    sequence = rates(optimizer, schedule, 4)
    list(islice(sequence, 9))
    next(sequence)  # stands at the start of step 9, before it is taken
    _, groups = pack_optimizer(optimizer, ["weight", "bias"])
    saved = json.loads(json.dumps({"schedule": schedule.state(), "groups": groups}))

    other = make_optimizer(model, config)
    resumed = Schedule(other, config, 4)
    load_optimizer(other, ["weight", "bias"], {}, saved["groups"])
    resumed.load(saved["schedule"])
    assert resumed.state() == schedule.state()
    for _ in range(2):  # steps 9 and 10, inside the third epoch
        other.step(), optimizer.step()
        resumed.after_step(), schedule.after_step()
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert other.param_groups[0]["betas"] == optimizer.param_groups[0]["betas"]
    resumed.after_epoch(), schedule.after_epoch()
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
