"""Training on meshes of different sizes, and on some points of each."""

import logging
import os
import signal
from dataclasses import replace

import pytest
import torch
from packed_run import MEAN, SIZES, SOME, SPEC, mesh, network, packed_data, packed_fit
from tiny_run import Tiny, tiny_data, tiny_fit

from linearno import CrossLinearNO
from linearno.core.errors import UserError
from linearno.data import FieldData, Scaler, relative_l2
from linearno.training import (
    Completion,
    Interrupted,
    LossConfig,
    Rollout,
    TrainingConfig,
    TrainingSetup,
    predict,
)
from linearno.training.history import read_history
from linearno.training.predict import sample_errors
from linearno.training.trainer import Trainer

WHOLE = TrainingConfig(epochs=3, batch=3, lr=3e-3)


def gradients_of_a_step(data, batch, loss):
    """Of a step over four samples, in packed batches of so many."""
    model, config = network().double(), TrainingConfig(loss=loss, clip=None, batch=batch)
    setup = TrainingSetup(model, Scaler.fit(SPEC, data.everything()), data, config)
    value, _ = Trainer(setup, torch.device("cpu")).update(torch.tensor([5, 2, 0, 3]))
    return value, [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("kind", ["relative_l2", "mse"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_packed_batch_has_the_loss_and_gradient_of_its_meshes_one_by_one(kind, reduction):
    data, loss = packed_data(kind=torch.float64), LossConfig(kind=kind, reduction=reduction)
    together, one_by_one, three_and_one = (gradients_of_a_step(data, batch, loss) for batch in (4, 1, 3))
    torch.testing.assert_close(together, one_by_one)
    torch.testing.assert_close(three_and_one, one_by_one)


def test_meshes_of_one_size_train_packed_as_they_do_stacked(tmp_path):
    generator = torch.Generator().manual_seed(2)
    samples = [mesh(11, generator, torch.float64) for _ in range(7)]
    stacked = FieldData(SPEC, *(torch.stack([s[part] for s in samples]) for part in range(3)))
    config = WHOLE.model_copy(update={"validation": 2})
    runs = [
        packed_fit(tmp_path / name, config, model=network().double(), data=data)
        for name, data in {"packed": FieldData.pack(SPEC, samples), "stacked": stacked}.items()
    ]
    for packed, plain in zip(*(run.parameters() for run in runs), strict=True):
        torch.testing.assert_close(packed, plain, rtol=1e-8, atol=1e-10)
    validation = [
        [record.validation for record in read_history(tmp_path / name / "history.jsonl")]
        for name in ("packed", "stacked")
    ]
    assert validation[0] == pytest.approx(validation[1], rel=1e-8)


def stopping_at(forward):
    """A network that sends itself a signal in that training forward, counted from one."""
    model, count = network(), 0

    def before(module, _):
        nonlocal count
        count += module.training
        if module.training and count == forward:
            os.kill(os.getpid(), signal.SIGINT)

    model.register_forward_pre_hook(before)
    return model


@pytest.mark.parametrize(("config", "forward"), [(SOME, 2), (SOME, 8), (WHOLE, 5)])
def test_interrupted_and_resumed_equals_uninterrupted_to_the_bit(tmp_path, config, forward):
    whole = packed_fit(tmp_path / "whole", config)
    with pytest.raises(Interrupted):
        packed_fit(tmp_path / "parts", config, model=stopping_at(forward))
    resumed = packed_fit(tmp_path / "parts", config, model=network(seed=99))
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name


def seen_by(model):
    """Points of each mesh and their coordinates in every call: while training, and else (first the check)."""
    training, testing = [], []

    def note(module, given, named):
        coords, segments = given[0], named.get("segments")
        sizes = [coords.shape[1]] * len(coords) if segments is None else segments.diff().tolist()
        (training if module.training else testing).append((sizes, coords))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return training, testing


def test_an_epoch_sees_some_points_of_each_mesh_and_an_evaluation_all(tmp_path):
    model, config = network(), SOME.model_copy(update={"epochs": 2, "accumulate": 1})
    training, testing = seen_by(model)
    packed_fit(tmp_path, config, model=model)
    assert max(size for sizes, _ in training for size in sizes) == 8
    tested = [size for sizes, _ in testing[1:] for size in sizes]
    assert len(tested) == 4  # two held-out meshes after each of two epochs
    assert all(size in SIZES for size in tested)
    assert tested[:2] == tested[2:]


def test_points_are_drawn_anew_in_every_epoch(tmp_path):
    """With a batch for all, what one epoch sees and the next does are distinct draws of the same meshes."""
    data = packed_data((40, 50, 60))
    model, config = network(), TrainingConfig(epochs=2, batch=3, points=10)
    training, _ = seen_by(model)
    packed_fit(tmp_path, config, model=model, data=data)
    first, second = (set(map(tuple, coords[0].tolist())) for _, coords in training)
    everything = set(map(tuple, Scaler.fit(SPEC, data.everything()).coords.encode(data.coords).tolist()))
    assert first <= everything
    assert second <= everything
    assert len(first) == len(second) == 30
    assert 0 < len(first & second) < 20  # by chance 30 · 30 / 150 = 6 or so


def test_surface_points_are_in_every_epoch(tmp_path):
    data = packed_data((40, 50))
    model, config = network(), TrainingConfig(epochs=3, batch=1, points=25, keep_surface=True)
    training, _ = seen_by(model)
    packed_fit(tmp_path, config, model=model, data=data)
    places = [set(map(tuple, coords[0].tolist())) for _, coords in training]
    for start, stop in ((0, 40), (40, 90)):
        surface = set(map(tuple, data.coords[start:stop][data.surface[start:stop]].tolist()))
        own = [points for points in places if points & surface]
        assert 0 < len(surface) < 25
        assert len(own) == 3
        assert all(surface <= points and len(points) == 25 for points in own)


@pytest.mark.parametrize("shared", [True, False])
def test_some_points_of_meshes_of_one_size(tmp_path, shared):
    generator = torch.Generator().manual_seed(2)
    samples = [mesh(11, generator) for _ in range(4)]
    coords, inputs, targets = (torch.stack([s[part] for s in samples]) for part in range(3))
    data = FieldData(SPEC, coords[0] if shared else coords, inputs, targets)
    model = network()
    training, testing = seen_by(model)
    config = TrainingConfig(epochs=2, batch=3, points=6, validation=1)
    packed_fit(tmp_path, config, model=model, data=data)
    assert [sizes for sizes, _ in training] == [[6, 6, 6]] * 2
    assert [sizes for sizes, _ in testing[1:]] == [[11]] * 2
    known = set(map(tuple, coords.flatten(0, 1).tolist()))
    assert all(set(map(tuple, seen.flatten(0, 1).tolist())) <= known for _, seen in training)


def test_a_completion_observes_some_of_the_points_that_are_seen(tmp_path):
    torch.manual_seed(0)
    data = tiny_data()
    whole = replace(data, spec=data.spec.model_copy(update={"inputs": (), "grid": None}), inputs=None)
    task = Completion(ratio=0.5)
    asked = task.spec(whole.spec)
    model = CrossLinearNO(coords=2, inputs=1, outputs=1, width=8, depth=1, heads=2, slices=3)
    training, testing = seen_by(model)
    packed_fit(tmp_path, TrainingConfig(epochs=1, batch=13, points=12), model=model, data=whole, task=task,
               scaler=Scaler.fit(asked, task.scaling_batch(whole.everything(), asked)))  # fmt: skip
    assert [sizes for sizes, _ in training] == [[6] * 13]
    assert not testing[1:]


def test_predictions_have_the_form_of_the_targets_whatever_the_batch():
    data, model = packed_data(kind=torch.float64), network().double()
    scaler, cpu = Scaler.fit(SPEC, data.everything()), torch.device("cpu")
    one, four = (predict(model, scaler, data, batch=batch, device=cpu) for batch in (1, 4))
    assert one.shape == data.targets.shape
    torch.testing.assert_close(one, four)
    errors = sample_errors(relative_l2, one, data)
    for i, (start, stop) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        error = (one - data.targets)[start:stop].norm() / data.targets[start:stop].norm()
        torch.testing.assert_close(errors[i], error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model": lambda: CrossLinearNO(coords=2, inputs=1, outputs=1)},
            "model 'cross-linearno' needs points, which the data do not have",
        ),
        (
            {"model": lambda: network(stem="conv", grid=(16, 12))},
            "takes meshes of one size, these differ; build it with stem=linear",
        ),
        ({"task": lambda: Rollout()}, "task=rollout takes meshes of one size"),
        ({"data": lambda: replace(packed_data(), surface=None)}, "keep_surface=true: these data do not say"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        packed_fit(tmp_path / "run", SOME, **{name: make() for name, make in change.items()})
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_model_tied_to_a_grid_takes_all_of_its_points(tmp_path):
    with pytest.raises(UserError, match="needs it whole"):
        tiny_fit(tmp_path, TrainingConfig(epochs=1, points=8), model=network(stem="conv", grid=(4, 5)))
    tiny_fit(tmp_path, TrainingConfig(epochs=1, points=8), model=Tiny())


def test_the_mean_loss_of_the_history_is_that_of_the_samples(tmp_path):
    """At a rate of almost nothing all epochs see the same network."""
    config = TrainingConfig(epochs=2, batch=4, lr=1e-12, loss=MEAN)
    data = packed_data(kind=torch.float64)
    model = packed_fit(tmp_path, config, model=network().double(), data=data)
    answers = predict(model, Scaler.fit(SPEC, data.everything()), data, batch=1, device=torch.device("cpu"))
    for record in read_history(tmp_path / "history.jsonl"):
        assert record.loss == pytest.approx(sample_errors(relative_l2, answers, data).mean().item(), rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("config", [SOME, WHOLE], ids=["some points", "whole meshes"])
def test_on_cuda_no_step_waits_and_the_curve_is_the_cpus(tmp_path, monkeypatch, caplog, config):
    step = Trainer.step

    def watched(trainer, index):
        torch.cuda.set_sync_debug_mode("error" if trainer.state.epoch else "default")
        step(trainer, index)
        torch.cuda.set_sync_debug_mode("default")

    packed_fit(tmp_path / "cpu", config)
    monkeypatch.setattr(Trainer, "step", watched)
    with caplog.at_level(logging.INFO):
        packed_fit(tmp_path / "cuda", config, device=torch.device("cuda"))
    assert "not captured" in caplog.text
    cpu, cuda = ([r.loss for r in read_history(tmp_path / at / "history.jsonl")] for at in ("cpu", "cuda"))
    assert cuda == pytest.approx(cpu, rel=1e-3)
