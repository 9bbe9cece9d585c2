"""What a run trains, and the checks of everything that would otherwise fail during or after training."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data.benchmark import PerSample, relative_l2
from linearno.data.field_data import FieldData
from linearno.data.scaler import Scaler
from linearno.nn.protocol import (
    GRID_NEED,
    Recomputable,
    SelfFitting,
    Streamable,
    fixed_grid,
    grid_free_settings,
    model_name,
    needs_of,
    setting_instead,
    takes_segments,
)
from linearno.ops import backend
from linearno.training.config import TrainingConfig
from linearno.training.losses import require_loss
from linearno.training.predict import model_call, probe_sample
from linearno.training.tasks import Completion, Task


@dataclass(frozen=True)
class TrainingSetup:
    """A model with all that determines its training.

    Args:
        model: trained in place.
        scaler: between physical units and what the model sees.
        train: samples to train on.
        config: optimiser, schedule, loss and protocol.
        validation: samples that choose the best epoch, if there are any.
        task: how samples become model calls.
        seed: of the order of samples and everything drawn.
        metric: error of a validation sample.
        loss: the benchmark's loss, for `config.loss.kind="benchmark"`.
    """

    model: nn.Module
    scaler: Scaler
    train: FieldData
    config: TrainingConfig
    validation: FieldData | None = None
    task: Task = field(default_factory=Task)
    seed: int = 0
    metric: PerSample = relative_l2
    loss: PerSample | None = None

    def check(self) -> None:
        """Refuse model, data, task and settings that do not fit together."""
        _require_needs(self)
        _require_points(self)
        if self.config.shards > 1:
            require_shardable(self)
        if self.config.recompute and not isinstance(self.model, Recomputable):
            raise UserError(
                f"training.recompute=true: model {model_name(self.model)!r} cannot recompute its blocks; "
                "leave it out"
            )
        require_loss(self.config.loss, self.train.spec.grid, self.loss)
        if self.train.offsets is None:
            points = self.train.coords.shape[-2]
            self.task.draw(min(points, self.config.points or points), 0)
        if self.loss is not None and self.config.loss.kind == "benchmark":
            require_values("the loss", self.loss, self.train, gradient=True)
        if isinstance(self.model, SelfFitting):
            _require_closed_form(self, self.model)
        else:
            _require_output(self)


def split_validation(train: FieldData, count: int, seed: int) -> tuple[FieldData, FieldData | None]:
    """Training and validation samples; the latter are the last `count` of a seeded permutation.

    Of data with groups whole groups are held out, as many as make up `count` samples or more.
    """
    if count >= len(train):
        raise UserError(f"training.validation={count} leaves none of {len(train)} samples to train on")
    if count == 0:
        return train, None
    if train.groups:
        held = torch.tensor(_held_out_groups(train.groups, count, seed))
        return train.subset((~held).nonzero()[:, 0]), train.subset(held.nonzero()[:, 0])
    order = torch.randperm(len(train), generator=torch_generator(seed))
    return train.subset(order[:-count]), train.subset(order[-count:])


def _held_out_groups(groups: tuple[int, ...], count: int, seed: int) -> list[bool]:
    """Mask of the samples in the last groups of a seeded permutation."""
    names = sorted(set(groups))
    held: set[int] = set()
    for index in torch.randperm(len(names), generator=torch_generator(seed)).flip(0).tolist():
        if sum(group in held for group in groups) >= count:
            break
        held.add(names[index])
    if len(held) == len(names):
        raise UserError(f"training.validation={count} leaves none of {len(names)} simulations to train on")
    return [group in held for group in groups]


def _require_needs(setup: TrainingSetup) -> None:
    """Refuse data and tasks that do not provide what the model's `forward` takes."""
    model, train, task = setup.model, setup.train, setup.task
    needs = needs_of(model)
    if needs is None:
        return
    name, provided = model_name(model), {"positions", *train.aux, *task.provides}
    provided |= {"surface"} if train.surface is not None else set()
    provided |= {GRID_NEED} if fixed_grid(model) is not None else set()
    if missing := [need for need in needs if need not in provided]:
        there = ", ".join(sorted(provided - {"positions"})) or "nothing beyond coordinates and fields"
        raise UserError(
            f"model {name!r} needs {missing[0]}, which the data do not have; there is {there}"
            f"{setting_instead(model, missing[0])}"
        )
    if extra := set(task.provides) - set(needs):
        raise UserError(
            f"task={task.name} gives the model {extra.pop()!r}, which model {name!r} does not take; "
            "choose another model or task"
        )


def _require_points(setup: TrainingSetup) -> None:
    """Refuse meshes that the model cannot take, and a surface mask that the data do not have."""
    model, train, config = setup.model, setup.train, setup.config
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


def _require_closed_form(setup: TrainingSetup, model: SelfFitting) -> None:
    """Refuse settings, tasks and data that need gradient steps."""
    config, task, name = setup.config, setup.task, model_name(setup.model)
    if config.epochs != 1:
        raise UserError(
            f"training.epochs={config.epochs}: model {name!r} is fitted in closed form, at once; set it to 1"
        )
    if task.unrolls:
        raise UserError(f"task={task.name}: model {name!r} takes no gradient steps; set task.forcing=teacher")
    if config.points is not None:
        raise UserError(f"training.points={config.points}: model {name!r} takes all points; leave it out")
    if setup.train.spec.masked_outputs:
        raise UserError(f"model {name!r} needs targets at all points; these data have some that are unknown")
    model.require_fittable(len(setup.train))


def require_shardable(setup: TrainingSetup) -> None:
    """Refuse what needs more of a sample than its points one by one and its slices."""
    model, config, train = setup.model, setup.config, setup.train
    shards = f"training.shards={config.shards}"
    if not isinstance(model, Streamable) or fixed_grid(model) is not None:
        raise UserError(f"{shards}: a model tied to a grid keeps its points together; leave it out")
    if config.loss.kind == "benchmark":
        raise UserError(f"{shards}: the benchmark's loss sees whole samples; leave training.shards out")
    if isinstance(setup.task, Completion):
        raise UserError(f"{shards}: task=completion observes points of the whole sample; leave it out")
    if config.loss.gradient_weight:
        raise UserError(f"{shards}: slopes need neighbours; set training.loss.gradient_weight=0")
    if train.offsets is not None or config.points is not None:
        what = (
            "meshes of different sizes" if train.offsets is not None else f"training.points={config.points}"
        )
        raise UserError(f"{shards}: {what} are not spread over processes; leave training.shards out")


@torch.no_grad()
def _require_output(setup: TrainingSetup) -> None:
    """Refuse a model whose prediction does not have the shape of the targets.

    Predicts one sample on the model's device, without kernels; model and random state stay as they were.
    """
    model, scaler, train = setup.model, setup.scaler, setup.train
    device = next(model.parameters(), train.coords).device
    call = probe_sample(setup.task, train, device, setup.config.points)
    arguments, keywords = model_call(model, scaler, call)
    training, devices = model.training, [device] if device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), backend("plain"):
            out = model(*arguments, **keywords)
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
    """Refuse a loss or metric that does not give one value per sample, or a loss without a gradient."""
    some = data.subset(torch.arange(min(2, len(data)))).everything()
    guess = some.targets.nan_to_num().clone().requires_grad_()
    values = measure(guess, some._replace(targets=some.targets.nan_to_num()))
    shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if shape != (some.size,):
        raise UserError(f"{name} gave {shape} for {some.size} samples; expected one value for each")
    if gradient and not values.requires_grad:
        raise UserError(f"{name} has no gradient: it must depend on the prediction")
