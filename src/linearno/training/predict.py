"""From a sample to the model's answer in physical units. Axes: S samples, B batch, N points, C channels."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.core.errors import UserError
from linearno.data.benchmark import PerSample
from linearno.data.field_data import FieldData
from linearno.data.point_sampling import points_and_surface
from linearno.data.sample import Batch
from linearno.data.scaler import Scaler
from linearno.metrics.norms import mask_unknown
from linearno.nn.protocol import GRID_NEED, model_name, needs_of
from linearno.training.tasks import IN_TEST, Ask, Task


def predict_batch(
    model: nn.Module, scaler: Scaler, batch: Batch, precision: Precision
) -> Float[Tensor, "B N C"]:
    """Encode, predict, decode: the fields that the model gives for a batch on its own device.

    bf16 ends with the network: the result has the targets' type, and so has any loss computed from it.
    """
    with autocast(precision, batch.targets.device):
        coords, inputs = scaler.coords.encode(batch.coords), scaler.encode_inputs(batch.inputs)
        encoded = model(coords, inputs, **call_arguments(model, scaler, batch))
    return scaler.outputs.decode(encoded.to(batch.targets.dtype))


def call_arguments(model: nn.Module, scaler: Scaler, batch: Batch) -> dict[str, Tensor]:
    """Keyword arguments of the model for a batch: what it needs, and the segments of packed meshes.

    A module that is not registered gets what the task provides.
    """
    known: dict[str, Tensor | None] = {
        "time": batch.time,
        "positions": batch.aux.get("positions", batch.coords),
        "points": None if batch.points is None else scaler.coords.encode(batch.points),
        "surface": batch.surface,
        **batch.aux,
    }
    needs = needs_of(model)
    if needs is None:
        given = {name: part for name in ("time", "points") if (part := known[name]) is not None}
    else:
        needed = [name for name in needs if name != GRID_NEED]
        given = {name: part for name in needed if (part := known.get(name)) is not None}
        if missing := [name for name in needed if name not in given]:
            raise UserError(f"model {model_name(model)!r} needs {missing[0]}, which this batch does not hold")
    return given if batch.segments is None else {**given, "segments": batch.segments}


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
    ask: Ask | None = None,
) -> Float[Tensor, "*form C"]:
    """The model's answer for every sample of `data`, on the CPU; the model keeps its training mode.

    It has the form of the targets: (S, N, C), or (T, C) where the data are packed. What a task draws for a
    batch depends on `seed` and the batch's place in the data. Another way to `ask` the model takes batches
    where the data are, and carries them itself.
    """
    task = task or Task()
    task.require_packed(data)

    def ask_at_once(batch: Batch) -> Tensor:
        return predict_batch(model, scaler, batch, precision)

    def of_part(place: int, index: Tensor) -> Tensor:
        drawn = evaluation_draw(task, data.coords.shape[-2], seed, place)
        batch = data.batch(index).to(device if ask is None else data.targets.device)
        drawn = None if drawn is None else drawn.to(batch.targets.device)
        return task.test(ask or ask_at_once, batch, drawn).cpu()

    set_matmul_precision(precision)
    training = model.training
    model.eval()
    try:
        place = data.targets.device if data.offsets is None else "cpu"
        parts = torch.arange(len(data), device=place).split(batch)
        answers = [of_part(place, index) for place, index in enumerate(parts)]
        return torch.cat(answers) if data.offsets is None else torch.cat(answers, dim=1)[0]
    finally:
        model.train(training)


def sample_errors(
    metric: PerSample, prediction: Float[Tensor, "*form C"], data: FieldData
) -> Float[Tensor, "S"]:
    """The error of each sample of `data`, for a prediction of all of them as `predict` gives it."""
    batch = data.everything().to(prediction.device)
    prediction = prediction if data.offsets is None else prediction[None]
    if data.spec.masked_outputs:
        prediction, truth = mask_unknown(prediction, batch.targets)
        batch = batch._replace(targets=truth)
    errors = metric(prediction, batch)
    if errors.shape != (len(data),):
        name = getattr(metric, "__name__", "a metric")
        raise UserError(
            f"{name} gave {tuple(errors.shape)} values for {len(data)} samples; expected one each"
        )
    return errors


def probe_batch(task: Task, data: FieldData, device: torch.device, points: int | None = None) -> Batch:
    """What one call of the model sees of the first sample of `data`, or of its first `points` points."""
    kept = None if points is None else [torch.arange(min(points, points_and_surface(data, 0)[0]))]
    batch = data.batch(torch.zeros(1, dtype=torch.int64), kept).to(device)
    drawn = task.draw(batch.coords.shape[-2], 0)
    return task.call(batch, None if drawn is None else drawn.to(device))


def evaluation_draw(task: Task, points: int, seed: int, place: int) -> Tensor | None:
    """What is drawn for one batch of a test: the same whenever it is asked."""
    return task.draw(points, seed, IN_TEST, place)
