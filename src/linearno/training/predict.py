"""Predictions in physical units, and their errors. Axes: S samples, B batch, N points, C channels."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.core.errors import UserError
from linearno.data.benchmark import PerSample, Splits, relative_l2
from linearno.data.field_data import FieldData
from linearno.data.point_sampling import points_and_surface
from linearno.data.sample import Batch
from linearno.data.scaler import Scaler
from linearno.metrics import norms
from linearno.nn.protocol import GRID_NEED, model_name, needs_of
from linearno.training.tasks import TEST_STREAM, Predictor, Task


def predict_batch(
    model: nn.Module, scaler: Scaler, batch: Batch, precision: Precision
) -> Float[Tensor, "B N C"]:
    """Encode, predict, decode: the model's prediction for a batch on its device, in physical units.

    bf16 ends with the network: the result, and so any loss computed from it, has the type of the targets.
    """
    with autocast(precision, batch.targets.device):
        arguments, keywords = model_call(model, scaler, batch)
        encoded = model(*arguments, **keywords)
    return scaler.outputs.decode(encoded.to(batch.targets.dtype))


def model_call(
    model: nn.Module, scaler: Scaler, batch: Batch
) -> tuple[tuple[Tensor, Tensor | None], dict[str, Tensor]]:
    """Scaled coordinates and inputs, and the keyword arguments of the model for a batch.

    Keywords are what the model `needs`, and the segments of a packed batch. A module that is not registered
    gets what the task provides.
    """
    fields = scaler.coords.encode(batch.coords), scaler.encode_inputs(batch.inputs)
    known: dict[str, Tensor | None] = {
        "time": batch.time,
        "positions": batch.aux.get("positions", batch.coords),
        "points": None if batch.points is None else scaler.coords.encode(batch.points),
        "surface": batch.surface,
        **batch.aux,
    }
    needs = needs_of(model)
    names = ("time", "points") if needs is None else [name for name in needs if name != GRID_NEED]
    given = {name: part for name in names if (part := known.get(name)) is not None}
    if needs is not None and (missing := [name for name in names if name not in given]):
        raise UserError(f"model {model_name(model)!r} needs {missing[0]}, which this batch does not hold")
    return fields, given if batch.segments is None else {**given, "segments": batch.segments}


@torch.no_grad()
def predict(
    model: nn.Module,
    scaler: Scaler,
    data: FieldData,
    *,
    batch: int,
    device: torch.device,
    precision: Precision = "fp32",
    task: Task | None = None,
    seed: int = 0,
    predictor: Predictor | None = None,
) -> Float[Tensor, "*form C"]:
    """The prediction for every sample of `data`, on the CPU: (S, N, C), or (T, C) for packed data.

    Args:
        model: predicts in evaluation mode; its mode is restored.
        scaler: between physical units and what the model sees.
        data: samples; their targets are not used.
        batch: samples per model call.
        device: where the model is.
        precision: of the model call.
        task: how samples become model calls.
        seed: of what the task draws for each batch.
        predictor: replaces the model call. It takes batches on the device of the data.
    """
    task = task or Task()
    where = device if predictor is None else data.targets.device
    predictor = predictor or partial(predict_batch, model, scaler, precision=precision)
    set_matmul_precision(precision)
    training = model.training
    model.eval()
    try:
        indices = torch.arange(len(data), device=data.targets.device if data.offsets is None else "cpu")
        predictions = []
        for number, index in enumerate(indices.split(batch)):
            drawn = evaluation_draw(task, data.coords.shape[-2], seed, number)
            drawn = None if drawn is None else drawn.to(where)
            predictions.append(task.predict(predictor, data.batch(index).to(where), drawn).cpu())
        return torch.cat(predictions) if data.offsets is None else torch.cat(predictions, dim=1)[0]
    finally:
        model.train(training)


def evaluation_draw(task: Task, points: int, seed: int, number: int) -> Tensor | None:
    """The draw for batch `number` of a test: the same in every evaluation."""
    return task.draw(points, seed, TEST_STREAM, number)


def probe_sample(task: Task, data: FieldData, device: torch.device, points: int | None = None) -> Batch:
    """One model call for the first sample of `data`, or for its first `points` points."""
    kept = None if points is None else [torch.arange(min(points, points_and_surface(data, 0)[0]))]
    batch = data.batch(torch.zeros(1, dtype=torch.int64), kept).to(device)
    drawn = task.draw(batch.coords.shape[-2], 0)
    return task.probe_batch(batch, None if drawn is None else drawn.to(device))


def constrain(
    known: PerSample, predictions: Float[Tensor, "*form C"], data: FieldData
) -> Float[Tensor, "*form C"]:
    """Predictions for all samples of `data` with the values that `known` sets, see `Benchmark.constrain`."""
    batch = data.everything().to(predictions.device)
    return known(predictions, batch) if data.offsets is None else known(predictions[None], batch)[0]


def sample_errors(
    metric: PerSample, prediction: Float[Tensor, "*form C"], data: FieldData
) -> Float[Tensor, "S"]:
    """The error of each sample of `data`, given the `predict`ion of all of them."""
    batch = data.everything().to(prediction.device)
    prediction = prediction if data.offsets is None else prediction[None]
    if data.spec.masked_outputs:
        prediction, truth = norms.mask_unknown(prediction, batch.targets)
        batch = batch._replace(targets=truth)
    errors = metric(prediction, batch)
    if errors.shape != (len(data),):
        name = getattr(metric, "__name__", "a metric")
        raise UserError(
            f"{name} gave {tuple(errors.shape)} values for {len(data)} samples; expected one each"
        )
    return errors


def score(
    predictions: Float[Tensor, "*form C"], splits: Splits, metrics: Mapping[str, PerSample], task: Task
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Errors of each test sample by metric, and their summaries: overall, by frame, by field.

    `mean_field` is the error of a trivial prediction, the mean of the training targets.
    """
    errors = {name: sample_errors(metric, predictions, splits.test) for name, metric in metrics.items()}
    summaries: dict[str, Any] = {name: _summary(values) for name, values in errors.items()}
    if task.frame is not None:
        frames = zip(
            predictions.split(task.frame, -1), splits.test.targets.split(task.frame, -1), strict=True
        )
        summaries["relative_l2_by_frame"] = [norms.relative_l2(*pair).mean().item() for pair in frames]
    elif len(splits.test.spec.fields) > 1:  # the joint norm hides errors of fields with small values
        summaries["relative_l2_by_field"] = _errors_by_field(predictions, splits)
    mean_field = {name: mean_field_error(splits, metric) for name, metric in metrics.items()}
    return errors, summaries | {"mean_field": mean_field}


def _summary(errors: Tensor) -> dict[str, Any]:
    return {
        "mean": errors.mean().item(),
        "median": errors.median().item(),
        "std": errors.std(correction=0).item(),
        "max": errors.max().item(),
        "unit": "dimensionless",
    }


def _errors_by_field(predictions: Tensor, splits: Splits) -> dict[str, Any]:
    """The relative L2 error of each output field; without fields that are zero everywhere."""
    spec, found = splits.test.spec, {}
    for name, channels in spec.fields.items():
        own = [spec.outputs.index(channel) for channel in channels]
        train, test = (replace(part, targets=part.targets[..., own]) for part in (splits.train, splits.test))
        errors = sample_errors(relative_l2, predictions[..., own], test)
        finite = errors[errors.isfinite()]
        if len(finite):
            mean = mean_field_error(Splits(train, test, splits.source))
            found[name] = {**_summary(finite), "mean_field": mean}
    return found


def errors_by_field(predictions: Tensor, splits: Splits) -> dict[str, float]:
    """Mean relative L2 error of each output field, and of a single one too."""
    return {name: field["mean"] for name, field in _errors_by_field(predictions, splits).items()}


def mean_field_error(splits: Splits, metric: PerSample = relative_l2) -> float:
    """The error of predicting the mean of the training targets for every sample.

    Meshes of different sizes have no mean field; for them it is the mean of each channel over all points.
    """
    targets = splits.train.targets
    mean = targets.nanmean(dim=0) if splits.train.spec.masked_outputs else targets.mean(dim=0)
    return sample_errors(metric, mean.expand_as(splits.test.targets), splits.test).mean().item()
