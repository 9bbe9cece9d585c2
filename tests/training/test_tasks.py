"""Rollouts, frames by their time and completions: what the model is asked, and what the loss sees."""

import signal

import pytest
import torch
from tiny_run import checked_setup

from linearno import CrossLinearNO, LinearNO
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data import Batch, FieldData, FieldSpec, Scaler
from linearno.metrics import relative_l2
from linearno.nn import roll_out
from linearno.training import Completion, Rollout, Task, Timed, TrainingConfig, fit
from linearno.training.history import read_history
from linearno.training.interrupt import Interrupted
from linearno.training.losses import LossConfig, make_loss, require_loss
from linearno.training.optimizer import Schedule
from linearno.training.predict import evaluation_draw, predict, predict_batch
from linearno.training.tasks import TRAINING_STREAM
from tests.truths import batch_of

CPU = torch.device("cpu")
FRAMES = FieldSpec(coords=("x", "y"), inputs=("w1", "w2", "w3"), outputs=("w4", "w5", "w6", "w7"))
FIELD = FieldSpec(coords=("x", "t"), outputs=("u",))
LOSS = make_loss(LossConfig(), None)


def trajectories(samples: int = 2, points: int = 9) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def draw(channels: int) -> torch.Tensor:
        return torch.randn(samples, points, channels, generator=generator, dtype=torch.float64)

    return Batch(draw(2), draw(3), draw(4))


def network(outputs: int = 1) -> LinearNO:
    torch.manual_seed(1)
    return LinearNO(
        coords=2, inputs=3, outputs=outputs, width=8, depth=2, heads=2, slices=4, temperature=None
    ).double()


def asking(model):
    return lambda batch: model(batch.coords, batch.inputs)


def training_loss(task, predictor, batch, drawn=None):
    """As in `Trainer.update`."""
    seen, truth = task.training_pairs(batch, drawn)
    return LOSS(task.unroll(predictor, seen) if task.unrolls else predictor(seen), truth)


def gradients(model, loss):
    used = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.autograd.grad(loss, used, allow_unused=True)


def test_teacher_forcing_as_one_batch_has_the_loss_and_gradient_of_one_step_after_another():
    model, batch = network(), trajectories()
    frames, total = batch.inputs, 0.0
    for step in range(4):  # as published: predict, sum the loss, go on from the true frame
        truth = batch.targets[..., step : step + 1]
        total = total + LOSS(model(batch.coords, frames), batch_of(truth))
        frames = torch.cat([frames[..., 1:], truth], dim=-1)
    at_once = training_loss(Rollout(), asking(model), batch)
    torch.testing.assert_close(at_once, total, rtol=1e-12, atol=0)
    for one, other in zip(gradients(model, at_once), gradients(model, total), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_without_a_teacher_the_gradient_goes_through_the_whole_rollout():
    model, batch = network(), trajectories()
    frames, total = batch.inputs, 0.0
    for step in range(4):
        frame = model(batch.coords, frames)
        total = total + LOSS(frame, batch_of(batch.targets[..., step : step + 1]))
        frames = torch.cat([frames[..., 1:], frame], dim=-1)
    free = training_loss(Rollout(forcing="none"), asking(model), batch)
    torch.testing.assert_close(free, total, rtol=1e-12, atol=0)
    for one, other in zip(gradients(model, free), gradients(model, total), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_pushforward_continues_from_predictions_but_its_gradient_ends_at_each_step():
    model, batch = network(), trajectories()
    with torch.no_grad():
        known = torch.cat([batch.inputs, model.rollout(batch.coords, batch.inputs, 3)], dim=-1)
    steps = [model(batch.coords, known[..., step : step + 3]) for step in range(4)]
    total = sum(LOSS(frame, batch_of(batch.targets[..., i : i + 1])) for i, frame in enumerate(steps))
    pushed = training_loss(Rollout(forcing="pushforward"), asking(model), batch)
    torch.testing.assert_close(pushed, total, rtol=1e-12, atol=0)
    for one, other in zip(gradients(model, pushed), gradients(model, total), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_test_feeds_predictions_back_and_never_sees_the_targets():
    model, batch = network(), trajectories()
    rolled = Rollout().predict(asking(model), batch, None)
    torch.testing.assert_close(rolled, model.rollout(batch.coords, batch.inputs, 4))
    blind = Rollout().predict(asking(model), batch._replace(targets=batch.targets * torch.nan), None)
    torch.testing.assert_close(blind, rolled)
    longer = model.rollout(batch.coords, batch.inputs, 9)
    torch.testing.assert_close(longer[..., :4], rolled)


def test_a_rollout_of_several_channels_keeps_them_together():
    """A step that adds one to the last frame counts up in both channels."""
    frames = torch.tensor([0.0, 10.0, 1.0, 11.0]).expand(1, 5, 4)
    rolled = roll_out(lambda known: known[..., -2:] + 1, frames, 3)
    assert rolled[0, 0].tolist() == [2, 12, 3, 13, 4, 14]
    windows = Rollout(channels=2).windows(Batch(torch.zeros(1, 5, 1), frames, rolled))
    assert windows.inputs[:, 0].tolist() == [[0, 10, 1, 11], [1, 11, 2, 12], [2, 12, 3, 13]]
    assert windows.targets[:, 0].tolist() == [[2, 12], [3, 13], [4, 14]]


def test_a_scaler_of_frames_takes_its_statistics_from_every_step():
    spec = FRAMES.model_copy(update={"standardised": ("inputs", "outputs")})
    batch = trajectories()
    asked = Rollout().spec(spec)
    scaler = Scaler.fit(asked, Rollout().scaling_batch(batch, asked))
    assert asked.outputs == ("w4",)
    torch.testing.assert_close(scaler.outputs.mean, batch.targets.mean().reshape(1))
    last = torch.cat([batch.inputs[..., 2:], batch.targets[..., :3]], dim=-1)
    torch.testing.assert_close(scaler.inputs.mean[2], last.mean())


def clock(frames: int = 5, samples: int = 6, points: int = 9) -> FieldData:
    """Frames of two channels that a network of the time can learn."""
    names = tuple(f"{name}{frame}" for frame in range(frames) for name in "uv")
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=names, standardised=("inputs",))
    generator = torch.Generator().manual_seed(0)
    coords = torch.rand(points, 2, generator=generator)
    inputs = torch.rand(samples, points, 1, generator=generator)
    time = torch.linspace(0, 1, frames)
    targets = torch.stack([1 + inputs * time, 2 - inputs * time], dim=-1)  # S N T 2
    return FieldData(spec, coords, inputs, targets.flatten(2))


def timed_network() -> LinearNO:
    torch.manual_seed(1)
    return LinearNO(coords=2, inputs=1, outputs=2, width=8, depth=1, heads=2, slices=4, time=True)


def asking_in_time(model):
    return lambda batch: model(batch.coords, batch.inputs, time=batch.time)


def test_a_timed_batch_asks_each_sample_for_a_frame_of_its_own_and_in_the_end_for_all():
    data, task = clock(), Timed(channels=2)
    draws = task.draws((4, 9, 10), 3, 1)
    assert draws.shape == (5, 4)
    assert all(sorted(order.tolist()) == [0, 1, 2, 3, 4] for order in draws.T)
    assert len({tuple(order.tolist()) for order in draws.T}) > 1
    assert torch.equal(draws, task.draws((4, 9, 10), 3, 1))
    batch = data.batch(torch.arange(4))
    seen, truth = task.training_pairs(batch, draws[0])
    for sample, frame in enumerate(draws[0].tolist()):
        assert seen.time[sample].item() == frame / 4
        torch.testing.assert_close(truth.targets[sample], batch.targets[sample, :, 2 * frame : 2 * frame + 2])


def test_all_frames_at_once_have_the_loss_and_gradient_of_the_frames_one_by_one():
    model, batch, task = timed_network(), clock().batch(slice(3)), Timed(channels=2)
    draws = task.draws((3, 9, 10), 0)
    one_by_one = sum(training_loss(task, asking_in_time(model), batch, drawn) for drawn in draws)
    together = Timed(channels=2, updates="batch")
    assert together.draws((3, 9, 10), 0) is None
    at_once = training_loss(together, asking_in_time(model), batch)
    torch.testing.assert_close(at_once, one_by_one)
    pairs = zip(gradients(model, at_once), gradients(model, one_by_one), strict=True)
    for one, other in pairs:
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_a_timed_test_gives_every_frame_in_its_place_and_never_sees_the_targets():
    model, batch, task = timed_network(), clock().batch(slice(3)), Timed(channels=2)
    told = task.predict(asking_in_time(model), batch, None)
    for frame in range(5):
        alone = model(batch.coords, batch.inputs, time=torch.full((3, 1), frame / 4))
        torch.testing.assert_close(told[..., 2 * frame : 2 * frame + 2], alone)
    blind = task.predict(asking_in_time(model), batch._replace(targets=batch.targets * torch.nan), None)
    assert torch.equal(blind, told)


def test_a_scaler_of_timed_outputs_takes_its_statistics_from_every_frame():
    data, task = clock(), Timed(channels=2)
    asked = task.spec(data.spec.model_copy(update={"standardised": ("inputs", "outputs")}))
    scaler = Scaler.fit(asked, task.scaling_batch(data.everything(), asked))
    assert asked.outputs == ("u0", "v0")
    torch.testing.assert_close(scaler.outputs.mean[0], data.targets[..., ::2].mean())


def timed_fit(folder, updates, model=None, *, batch=4, accumulate=1, epochs=2):
    task, data, model = Timed(channels=2, updates=updates), clock(), model or timed_network()
    config = TrainingConfig(epochs=epochs, batch=batch, accumulate=accumulate, loss=LossConfig(), clip=1.0)
    scaler = Scaler.fit(task.spec(data.spec), data.everything())
    setup = checked_setup(model, scaler, data, config, seed=7, task=task)
    fit(setup, device=CPU, folder=folder, fingerprint="timed")
    return model, read_history(folder / "history.jsonl")


@pytest.mark.parametrize(("updates", "each"), [("frame", 5), ("batch", 1)])
def test_a_batch_makes_an_update_for_each_frame_while_the_schedule_moves_once(tmp_path, updates, each):
    """Six samples in batches of four: two batches an epoch."""
    model, count = timed_network(), 0

    def before(*_):
        nonlocal count
        count += model.training

    model.register_forward_pre_hook(before)
    _, history = timed_fit(tmp_path, updates, model)
    assert count == 2 * 2 * each
    assert [record.step for record in history] == [2, 4]
    optimizer, rates = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), []
    expected = Schedule(optimizer, TrainingConfig(epochs=2), 2)
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        expected.after_step()
    assert [record.lr for record in history] == pytest.approx([rates[1], rates[3]])


def test_the_published_loop_is_an_optimiser_step_for_each_column_of_permuted_frames(tmp_path):
    """Written out: forward, loss, backward, clip, step for 5 columns, then the schedule."""
    model, data, task = timed_network(), clock(), Timed(channels=2)
    scaler = Scaler.fit(task.spec(data.spec), data.everything())
    config = TrainingConfig(epochs=1, batch=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = Schedule(optimizer, config, 2)
    order = torch.randperm(6, generator=torch_generator(7, 0))
    for step, index in enumerate(order.split(4)):
        batch = data.batch(index)
        for frames in task.draws((len(index), 9, 10), 7, TRAINING_STREAM, step):
            optimizer.zero_grad()
            time = frames[:, None] / 4
            truth = torch.stack([batch.targets[i, :, 2 * k : 2 * k + 2] for i, k in enumerate(frames)])
            answer_ = model(batch.coords, scaler.inputs.encode(batch.inputs), time=time)
            relative_l2(answer_, truth).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.after_step()
    fitted, _ = timed_fit(tmp_path, "frame", epochs=1)
    for one, other in zip(fitted.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_accumulated_timed_batches_make_the_updates_of_one_large_batch(tmp_path):
    whole, _ = timed_fit(tmp_path / "whole", "frame", batch=4)
    parts, _ = timed_fit(tmp_path / "parts", "frame", batch=2, accumulate=2)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("updates", ["frame", "batch"])
def test_a_timed_run_that_was_stopped_resumes_to_the_same_bits(tmp_path, updates):
    whole, _ = timed_fit(tmp_path / "whole", updates)
    model, calls = timed_network(), 0

    def stop(*_):
        nonlocal calls
        calls += model.training
        if calls == (7 if updates == "frame" else 2):  # in the second batch of the first epoch
            signal.raise_signal(signal.SIGTERM)

    model.register_forward_pre_hook(stop)
    with pytest.raises(Interrupted):
        timed_fit(tmp_path / "parts", updates, model)
    resumed, _ = timed_fit(tmp_path / "parts", updates)
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def completer(**settings) -> CrossLinearNO:
    torch.manual_seed(2)
    sizes = {"width": 8, "depth": 1, "heads": 2, "slices": 4} | settings
    return CrossLinearNO(coords=2, inputs=1, outputs=1, **sizes)


def fields(samples: int = 6, points: int = 40) -> FieldData:
    generator = torch.Generator().manual_seed(0)
    coords = torch.rand(points, 2, generator=generator)
    wave = torch.rand(samples, 1, 1, generator=generator) * torch.sin(6 * coords[:, :1])
    return FieldData(FIELD, coords, None, wave + 1)


def test_a_completion_sees_the_values_at_the_drawn_points_and_no_others():
    model, batch, task = completer(), fields().everything(), Completion(ratio=0.25)
    drawn = task.draw(40, 3)
    assert len(drawn) == len(set(drawn.tolist())) == 10
    scaler = Scaler.blank(task.spec(FIELD))
    told = task.predict(lambda asked: predict_batch(model, scaler, asked, "fp32"), batch, drawn)
    torch.testing.assert_close(
        told, model(batch.coords[:, drawn], batch.targets[:, drawn], points=batch.coords)
    )
    hidden = batch.targets.clone()
    hidden[:, [i for i in range(40) if i not in drawn.tolist()]] = torch.nan
    torch.testing.assert_close(
        task.predict(
            lambda asked: predict_batch(model, scaler, asked, "fp32"), batch._replace(targets=hidden), drawn
        ),
        told,
    )


def test_every_batch_of_a_test_has_its_own_points_and_always_the_same():
    model, data, task = completer(), fields(), Completion(ratio=0.25)
    scaler = Scaler.blank(task.spec(FIELD))
    settings = {"batch": 2, "device": CPU, "task": task}
    one, again = (predict(model, scaler, data, seed=4, **settings) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, predict(model, scaler, data, seed=5, **settings))
    draws = {tuple(evaluation_draw(task, 40, 4, place).tolist()) for place in range(3)}
    assert len(draws) == 3


@pytest.mark.parametrize("interrupted", [False, True])
def test_training_draws_new_points_at_every_step_and_the_same_ones_when_resumed(tmp_path, interrupted):
    seen: list[tuple[int, ...]] = []

    class Watched(Completion):
        def training_pairs(self, batch, drawn):
            seen.append(tuple(drawn.tolist()))
            return super().training_pairs(batch, drawn)

    task, data = Watched(ratio=0.25), fields()
    config = TrainingConfig(epochs=3, batch=2, loss=LossConfig(kind="mse", reduction="mean"), clip=None)
    scaler = Scaler.blank(task.spec(FIELD))

    def train(folder, on_epoch=None):
        model = completer()
        setup = checked_setup(model, scaler, data, config, seed=7, task=task)
        fit(setup, device=CPU, folder=folder, fingerprint="completion", on_epoch=on_epoch)
        return model.state_dict()

    whole = train(tmp_path / "whole")
    steps = list(seen)
    assert len(steps) == len(set(steps)) == 9  # three steps an epoch, never the same points
    if interrupted:

        def stop(record):
            if record.epoch == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts", stop)
        parts = train(tmp_path / "parts")
        assert all(torch.equal(parts[name], whole[name]) for name in whole)
        assert seen[-3:] == steps[-3:]


def test_the_squared_error_is_the_mean_over_points_and_channels():
    prediction, truth = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    loss = make_loss(LossConfig(kind="mse", reduction="mean"), None)
    torch.testing.assert_close(
        loss(prediction, batch_of(truth)), torch.nn.functional.mse_loss(prediction, truth)
    )
    with pytest.raises(UserError, match="gradient_weight=0"):
        require_loss(LossConfig(kind="mse", gradient_weight=0.1), (5, 1))


@pytest.mark.parametrize(
    ("task", "spec", "complaint"),
    [
        (Rollout(), FIELD, "0 inputs are not frames"),
        (Rollout(channels=2), FRAMES, "3 inputs are not frames of 2 channels"),
        (Timed(), FIELD, "1 outputs are not frames of 1 channels, two or more"),
        (Timed(channels=3), FRAMES, "4 outputs are not frames of 3 channels"),
        (Completion(), FRAMES, "also have"),
        (Completion(ratio=0.001), FIELD.model_copy(update={"grid": (4, 5)}), "leaves none to observe"),
    ],
)
def test_data_that_do_not_fit_a_task_are_named_before_any_work(task, spec, complaint):
    with pytest.raises(UserError, match=complaint):
        task.spec(spec)


def test_a_rollout_needs_a_step_and_a_direct_task_changes_nothing():
    with pytest.raises(UserError, match="one step or more"):
        network().rollout(torch.rand(1, 3, 2), torch.rand(1, 3, 3), 0)
    batch = trajectories()
    assert Task().spec(FRAMES) == FRAMES
    assert Task().training_pairs(batch, None) == (batch, batch)
    assert relative_l2(batch.targets, batch.targets).max() == 0
