"""Checks before a run: everything that would fail during or after training is refused before it."""

from math import prod

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.data.benchmark import PerSample
from linearno.data.field_data import FieldData
from linearno.data.scaler import Scaler
from linearno.nn.protocol import (
    GRID_NEED,
    Recomputable,
    Streamable,
    fixed_grid,
    grid_free_settings,
    model_name,
    needs_of,
    takes_segments,
)
from linearno.ops import backend
from linearno.training.config import TrainingConfig
from linearno.training.losses import make_loss
from linearno.training.predict import call_arguments, probe_batch
from linearno.training.tasks import Completion, Task


def require_trainable(
    model: nn.Module,
    train: FieldData,
    config: TrainingConfig,
    task: Task,
    loss: PerSample | None = None,
) -> None:
    """An error now, before anything is written, if model, data, task and settings do not fit together."""
    require_needs(model, train, task)
    require_points(model, train, config, task)
    if config.shards > 1:
        require_shardable(model, config, task, train)
    if config.recompute and not isinstance(model, Recomputable):
        raise UserError(
            f"training.recompute=true: model {model_name(model)!r} cannot recompute its blocks; leave it out"
        )
    make_loss(config.loss, train.spec.grid, own=loss)
    if train.offsets is None:
        most = train.coords.shape[-2]
        task.draw(min(most, config.points or most), 0)


def require_needs(model: nn.Module, train: FieldData, task: Task) -> None:
    """An error now if the data or the task do not provide what the model's `forward` takes."""
    needs = needs_of(model)
    if needs is None:
        return
    name, provided = model_name(model), {"positions", *train.aux, *task.provides}
    provided |= {"surface"} if train.surface is not None else set()
    provided |= {GRID_NEED} if fixed_grid(model) is not None else set()
    if missing := [need for need in needs if need not in provided]:
        there = ", ".join(sorted(provided - {"positions"})) or "nothing beyond coordinates and fields"
        raise UserError(f"model {name!r} needs {missing[0]}, which the data do not have; there is {there}")
    if extra := set(task.provides) - set(needs):
        raise UserError(
            f"task={task.name} gives the model {extra.pop()!r}, which model {name!r} does not take; "
            "choose another model or task"
        )


def require_points(model: nn.Module, train: FieldData, config: TrainingConfig, task: Task) -> None:
    """An error now if the model or the task cannot take such meshes, or the data know no surface to keep."""
    task.require_packed(train)
    name, grid = model_name(model), fixed_grid(model)
    if train.offsets is not None and (grid is not None or not takes_segments(model)):
        raise UserError(
            f"model {name!r} takes meshes of one size, these differ; "
            f"build it with {grid_free_settings(model)}"
        )
    if grid is not None and grid != train.spec.grid and train.offsets is None:
        there = train.spec.grid or f"{train.coords.shape[-2]} points without a grid"
        if train.spec.grid is not None or prod(grid) != train.coords.shape[-2]:
            raise UserError(f"model {name!r} was built for the grid {grid}, these data have {there}")
    if config.points is not None and grid is not None:
        raise UserError(
            f"training.points={config.points}: a model tied to a grid needs it whole; leave it out"
        )
    edges = [need for need in needs_of(model) or () if train.spec.aux.get(need) == "edge"]
    if config.points is not None and edges:
        raise UserError(f"training.points={config.points}: model {name!r} needs all {edges[0]}; leave it out")
    if config.keep_surface and train.surface is None:
        raise UserError("training.keep_surface=true: these data do not say which points are on a surface")


@torch.no_grad()
def require_output(
    model: nn.Module, scaler: Scaler, train: FieldData, config: TrainingConfig, task: Task
) -> None:
    """An error now if a first prediction does not have the shape of the targets.

    One sample, on the model's device, without kernels; nothing of the model or of the random state changes.
    """
    device = next(model.parameters(), train.coords).device
    call = probe_batch(task, train, device, config.points)
    coords, inputs = scaler.coords.encode(call.coords), scaler.encode_inputs(call.inputs)
    training, devices = model.training, [device] if device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), backend("plain"):
            out = model(coords, inputs, **call_arguments(model, scaler, call))
    finally:
        model.train(training)
    where = call.coords if call.points is None else call.points
    expected = (*where.shape[:2], scaler.outputs.mean.shape[0])
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if shape != expected or not out.is_floating_point():
        kind = f" of {out.dtype}" if isinstance(out, Tensor) else ""
        raise UserError(
            f"model {model_name(model)!r} returned {shape}{kind}; expected (batch, points, channels) = "
            f"{expected}, floating point"
        )


def require_values(name: str, measure: PerSample, data: FieldData, *, gradient: bool = False) -> None:
    """An error now if a loss or metric does not give one value per sample (with a gradient, for a loss)."""
    some = data.subset(torch.arange(min(2, len(data)))).everything()
    guess = some.targets.nan_to_num().clone().requires_grad_()
    values = measure(guess, some._replace(targets=some.targets.nan_to_num()))
    shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if shape != (some.size,):
        raise UserError(f"{name} gave {shape} for {some.size} samples; expected one value for each")
    if gradient and not values.requires_grad:
        raise UserError(f"{name} has no gradient: it must depend on the prediction")


def require_shardable(model: nn.Module, config: TrainingConfig, task: Task, data: FieldData) -> None:
    """Refuse what needs more of a sample than its points one by one and its slices."""
    shards = f"training.shards={config.shards}"
    if not isinstance(model, Streamable) or fixed_grid(model) is not None:
        raise UserError(f"{shards}: a model tied to a grid keeps its points together; leave it out")
    if config.loss.kind == "benchmark":
        raise UserError(f"{shards}: the benchmark's loss sees whole samples; leave training.shards out")
    if isinstance(task, Completion):
        raise UserError(f"{shards}: task=completion observes points of the whole sample; leave it out")
    if config.loss.gradient_weight:
        raise UserError(f"{shards}: slopes need neighbours; set training.loss.gradient_weight=0")
    if data.offsets is not None or config.points is not None:
        what = "meshes of different sizes" if data.offsets is not None else f"training.points={config.points}"
        raise UserError(f"{shards}: {what} are not spread over processes; leave training.shards out")
