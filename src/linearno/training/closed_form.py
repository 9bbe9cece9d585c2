"""Fit a model in closed form, with a history of one record. Axes: S samples."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from linearno.core.errors import UserError
from linearno.data.sample import Batch
from linearno.nn.protocol import SelfFitting, model_name
from linearno.training import parallel
from linearno.training.history import EpochRecord, append_history, cut_history
from linearno.training.losses import channel_scale, make_loss
from linearno.training.predict import model_call, predict, predict_batch, sample_errors
from linearno.training.setup import TrainingSetup

LOSS_BATCH = 16  # samples per model call

log = logging.getLogger(__name__)

OnEpoch = Callable[[EpochRecord], None]


def fit_closed_form(
    setup: TrainingSetup, *, device: torch.device, folder: Path, on_epoch: OnEpoch | None = None
) -> None:
    """Fit `setup.model` on the CPU, write its record, and move it to the device.

    Args:
        setup: a `SelfFitting` model, data and settings, already checked.
        device: where to evaluate.
        folder: for `history.jsonl`; that of an earlier fit is replaced.
        on_epoch: called with the record.
    """
    model, train = setup.model, setup.train
    assert isinstance(model, SelfFitting)
    if parallel.size() > 1:
        raise UserError(
            f"model {model_name(setup.model)!r} is fitted by one process: run it without torchrun"
        )
    torch.manual_seed(setup.seed)
    began = time.perf_counter()
    seen, truth = setup.task.training_pairs(train.everything(), None)
    (coords, inputs), more = model_call(setup.model, setup.scaler, seen)
    log.info("%s is fitted in closed form to %d samples", model_name(setup.model), len(coords))
    model.fit(coords, inputs, setup.scaler.outputs.encode(truth.targets), **more)
    seconds = time.perf_counter() - began
    setup.model.to(device).eval()
    setup.scaler.to(device)
    record = EpochRecord(
        epoch=1,
        step=1,
        loss=_training_loss(setup, device),
        lr=0.0,
        grad_norm=0.0,
        seconds=seconds,
        samples_per_second=len(train) / seconds,
        validation=_validation_error(setup, device),
    )
    cut_history(folder / "history.jsonl", 0)
    append_history(folder / "history.jsonl", record)
    if on_epoch:
        on_epoch(record)


@torch.no_grad()
def _training_loss(setup: TrainingSetup, device: torch.device) -> float:
    """The training loss of the fitted model, mean per sample."""
    config, train, total = setup.config, setup.train, 0.0
    scale = channel_scale(setup.scaler, train) if config.loss.scaled else None
    loss = make_loss(config.loss, train.spec.grid, scale, own=setup.loss)

    def of(batch: Batch) -> float:
        seen, truth = setup.task.training_pairs(batch, None)
        prediction = predict_batch(setup.model, setup.scaler, seen, config.eval_precision)
        value = loss(prediction, truth).item()
        return value * batch.size if config.loss.reduction == "mean" else value

    for index in torch.arange(len(train)).split(LOSS_BATCH):
        total += of(train.batch(index).to(device))
    return total / len(train)


def _validation_error(setup: TrainingSetup, device: torch.device) -> float | None:
    """Mean error of the validation samples; there is no epoch to choose by it."""
    if setup.validation is None:
        return None
    prediction = predict(
        setup.model,
        setup.scaler,
        setup.validation,
        batch=setup.config.eval_batch,
        device=device,
        precision=setup.config.eval_precision,
        task=setup.task,
        seed=setup.seed,
    )
    return sample_errors(setup.metric, prediction, setup.validation).mean().item()
