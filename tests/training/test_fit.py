import logging
import math

import pytest
import torch
from tiny_run import CPU, EVERYTHING, SPEC, Tiny, at_forward, checked_setup, tiny_data, tiny_fit
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data import FieldSpec
from linearno.data.field_data import FieldData
from linearno.data.scaler import Scaler
from linearno.metrics import relative_l2
from linearno.models import LinearNO
from linearno.training import LossConfig, TrainingConfig, fit, predict
from linearno.training.history import read_history
from linearno.training.losses import channel_scale
from linearno.training.setup import split_validation

SHORT = TrainingConfig(epochs=3, batch=4, schedule="constant")


def history(folder):
    return read_history(folder / "history.jsonl")


def test_it_learns(tmp_path):
    tiny_fit(tmp_path, TrainingConfig(epochs=15, batch=2, lr=3e-2, checkpoint_epochs=15))
    first, *_, last = history(tmp_path)
    assert last.loss < 0.7 * first.loss


def test_a_run_is_the_loop_that_one_would_write(tmp_path):
    """Adam, no clipping, one cycle by step, the order of torch.randperm: against plain PyTorch."""
    data, plain = tiny_data(), Tiny().eval()
    plain.train = lambda mode=True: plain  # no dropout, so that no random numbers are drawn
    fitted = Tiny().eval()
    fitted.train = lambda mode=True: fitted
    tiny_fit(tmp_path, TrainingConfig(epochs=2, batch=5, clip=None, optimizer="adamw"), model=fitted)

    scaler = Scaler.fit(SPEC, data.everything())
    optimizer = AdamW(plain.parameters(), lr=1e-3, weight_decay=1e-6)
    schedule = OneCycleLR(optimizer, max_lr=1e-3, epochs=2, steps_per_epoch=3)
    for epoch in range(2):
        for index in torch.randperm(13, generator=torch_generator(7, epoch)).split(5):
            optimizer.zero_grad()
            encoded = plain(data.coords.expand(len(index), -1, -1), scaler.inputs.encode(data.inputs[index]))
            relative_l2(scaler.outputs.decode(encoded), data.targets[index]).sum().backward()
            optimizer.step()
            schedule.step()
    for left, right in zip(fitted.parameters(), plain.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_history_counts_optimiser_steps_and_their_rates(tmp_path):
    config = TrainingConfig(epochs=4, batch=2, accumulate=3)  # 13 samples: steps of 6, 6, 1
    tiny_fit(tmp_path, config)
    records = history(tmp_path)
    assert [record.epoch for record in records] == [1, 2, 3, 4]
    assert [record.step for record in records] == [3, 6, 9, 12]
    optimizer = AdamW(Tiny().parameters(), lr=1e-3)
    schedule, rates = OneCycleLR(optimizer, max_lr=1e-3, total_steps=12), []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert [record.lr for record in records] == rates[2::3]


def test_the_cosine_by_epoch_is_in_the_history(tmp_path):
    tiny_fit(tmp_path, TrainingConfig(epochs=5, batch=4, schedule="cosine", schedule_every="epoch"))
    expected = [1e-3 * (1 + math.cos(math.pi * epoch / 5)) / 2 for epoch in range(5)]
    assert [record.lr for record in history(tmp_path)] == pytest.approx(expected)


def test_the_history_holds_the_mean_loss_of_a_sample(tmp_path):
    """With a rate that changes nothing, it is the mean over the data, whatever the last batch's size."""
    model = Tiny().eval()
    model.train = lambda mode=True: model
    tiny_fit(tmp_path, TrainingConfig(epochs=1, batch=5, lr=1e-30, schedule="constant"), model=model)
    data = tiny_data()
    prediction = predict(model, Scaler.fit(SPEC, data.everything()), data, batch=13, device=CPU)
    (record,) = history(tmp_path)
    assert record.loss == pytest.approx(relative_l2(prediction, data.targets).mean().item(), rel=1e-5)
    assert record.grad_norm > 0
    assert record.samples_per_second == pytest.approx(13 / record.seconds)


def test_each_epoch_calls_back_with_its_record(tmp_path):
    records = []
    tiny_fit(tmp_path, SHORT, on_epoch=records.append)
    assert records == history(tmp_path)


def test_averaged_weights_are_the_result_where_they_are_kept(tmp_path):
    config = TrainingConfig(epochs=4, batch=13, ema=0.7, lr=0.01, schedule="constant")  # one step an epoch
    model, decay = Tiny(), 0.7
    average = model.layers[0].weight.detach().clone()

    def follow(_):
        average.mul_(decay).add_(model.layers[0].weight.detach(), alpha=1 - decay)

    tiny_fit(tmp_path, config, model=model, on_epoch=follow)
    torch.testing.assert_close(model.layers[0].weight.detach(), average)


@pytest.mark.parametrize("ema", [None, 0.5])
def test_validation_picks_the_best_epoch(tmp_path, ema):
    config = TrainingConfig(
        epochs=12, batch=4, lr=0.3, clip=None, schedule="constant", validation=3, ema=ema
    )  # a rate so high that it wanders
    model = tiny_fit(tmp_path, config)
    errors = [record.validation for record in history(tmp_path)]
    assert min(errors) < errors[-1]
    data = tiny_data()
    _, held_out = split_validation(data, 3, seed=7)
    prediction = predict(model, Scaler.fit(SPEC, data.everything()), held_out, batch=1, device=CPU)
    assert relative_l2(prediction, held_out.targets).mean().item() == min(errors)


def test_validation_judges_the_averaged_weights(tmp_path):
    """With a decay near one they stay the initial ones, however far the run wanders."""
    config = TrainingConfig(epochs=3, batch=4, lr=0.3, schedule="constant", validation=3, ema=1 - 1e-7)
    tiny_fit(tmp_path, config)
    data = tiny_data()
    _, held_out = split_validation(data, 3, seed=7)
    prediction = predict(Tiny(), Scaler.fit(SPEC, data.everything()), held_out, batch=1, device=CPU)
    initial = relative_l2(prediction, held_out.targets).mean().item()
    assert [record.validation for record in history(tmp_path)] == pytest.approx([initial] * 3, rel=1e-4)


def test_held_out_samples_are_chosen_by_the_seed_and_never_trained_on():
    data = tiny_data()
    numbered = FieldData(SPEC, data.coords, data.inputs, torch.arange(13.0).view(13, 1, 1).expand(13, 20, 1))
    train, held_out = (part.targets[:, 0, 0].int().tolist() for part in split_validation(numbered, 4, seed=7))
    assert (len(train), len(held_out)) == (9, 4)
    assert sorted(train + held_out) == list(range(13))
    other = split_validation(numbered, 4, seed=8)[1].targets[:, 0, 0].int().tolist()
    assert sorted(other) != sorted(held_out)


def test_validation_leaves_something_to_train_on(tmp_path):
    with pytest.raises(UserError, match=r"validation=13 leaves none of 13 samples"):
        tiny_fit(tmp_path, TrainingConfig(validation=13))


def poison(model):
    with torch.no_grad():
        model.layers[0].weight.fill_(torch.nan)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    whole = tiny_fit(tmp_path / "whole", SHORT)
    forwards = []
    model = at_forward(7, lambda: poison(model))  # 4 steps an epoch
    model.register_forward_hook(lambda module, *_: forwards.append(module.training))
    with pytest.raises(UserError, match=r"epoch 2, step 3; the last good checkpoint is kept; try a lower"):
        tiny_fit(tmp_path / "nan", SHORT, model=model)
    assert sum(forwards) == 7
    assert [record.epoch for record in history(tmp_path / "nan")] == [1]
    resumed = tiny_fit(tmp_path / "nan", SHORT)
    assert torch.equal(resumed.layers[0].weight, whole.layers[0].weight)


def test_a_gradient_that_is_not_finite_stops_it_too(tmp_path):
    """√w has a finite value and an infinite slope at zero: the weights break, the loss does not yet."""

    class RootOfNothing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(()))

        def forward(self, coords, inputs=None):
            return self.scale.sqrt() * inputs + inputs

    with pytest.raises(UserError, match=r"gradient is not finite at epoch 1, step 1"):
        tiny_fit(tmp_path, TrainingConfig(epochs=1, batch=13), model=RootOfNothing())
    assert not (tmp_path / "checkpoint").exists()


def test_a_loss_that_rises_far_above_its_minimum_is_reported_once(tmp_path, caplog):
    model = Tiny()
    at_forward(
        9, lambda: model.layers[-1].bias.data.fill_(1e3), model
    )  # in the third epoch: 13 samples by four
    tiny_fit(tmp_path, SHORT.model_copy(update={"epochs": 5}), model=model)
    warnings = [line for line in caplog.messages if "the loss rose from" in line]
    assert len(warnings) == 1
    assert (
        "in epoch 3 and may not come back; a lower training.lr or training.clip=1 prevents it" in warnings[0]
    )


def test_a_folder_that_cannot_be_written_is_named_before_any_work(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    model = at_forward(1, lambda: pytest.fail("it trains"))
    with pytest.raises(UserError, match=r"cannot write to .*file/run"):
        tiny_fit(tmp_path / "file" / "run", model=model)


def test_a_gradient_loss_off_a_grid_is_refused(tmp_path):
    data = tiny_data()
    off_grid = FieldData(SPEC.model_copy(update={"grid": None}), data.coords, data.inputs, data.targets)
    with pytest.raises(UserError, match="needs data on a 2-D grid"):
        tiny_fit(tmp_path, TrainingConfig(loss=LossConfig(gradient_weight=0.1)), data=off_grid)


def test_what_runs_is_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="linearno"):
        tiny_fit(tmp_path, TrainingConfig(epochs=1, batch=4, precision="tf32"))
    assert "CPU" in caplog.text
    assert "61 parameters" in caplog.text
    assert "tf32 is not available on a CPU, which computes in fp32" in caplog.text


def test_bf16_trains(tmp_path):
    model = tiny_fit(tmp_path, EVERYTHING.model_copy(update={"precision": "bf16"}))
    assert model.layers[0].weight.dtype == torch.float32
    assert all(math.isfinite(record.loss) for record in history(tmp_path))


def test_a_model_without_blocks_cannot_run_them_again(tmp_path):
    with pytest.raises(UserError, match=r"training\.recompute=true: model 'Tiny' cannot recompute"):
        tiny_fit(tmp_path, EVERYTHING.model_copy(update={"recompute": True}))


@pytest.mark.parametrize("partial", [False, True])
def test_with_a_scaled_loss_training_does_not_depend_on_units(tmp_path, partial):
    torch.manual_seed(0)
    fields = torch.randn(6, 20, 2)
    if partial:
        fields[:, 5:, 1] = torch.nan  # known at a few points
    spec = FieldSpec(coords=("x", "y"), outputs=("u", "v"), standardised=("outputs",))
    spec = spec.model_copy(update={"masked_outputs": ("v",) if partial else ()})
    config = TrainingConfig(epochs=4, batch=3, schedule="constant", loss=LossConfig(scaled=True))
    coords, losses = torch.rand(20, 2), []
    for unit in (1.0, 1e5):
        data = FieldData(spec, coords, None, fields * torch.tensor([1.0, unit]))
        scaler, folder = Scaler.fit(spec, data.everything()), tmp_path / str(unit)
        torch.manual_seed(0)
        model = LinearNO(coords=2, outputs=2, width=8, depth=1, heads=2, slices=3)
        fit(checked_setup(model, scaler, data, config), device=CPU, folder=folder, fingerprint="")
        losses.append([record.loss for record in history(folder)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    if partial:
        known = channel_scale(scaler, data) / scaler.outputs.std
        torch.testing.assert_close(known, torch.tensor([1.0, 0.25]).sqrt())
