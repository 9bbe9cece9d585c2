"""The training step, and the state that it changes.

Axes: B samples of a step, K steps of an epoch, N points, C channels.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from linearno.core.randomness import torch_generator
from linearno.data.point_sampling import draw_points, points_and_surface
from linearno.data.sample import Batch
from linearno.nn.protocol import Recomputable, capturable, fused_parameters
from linearno.ops import WeightCache, sharded
from linearno.ops.side_streams import overlap_weight_gradients
from linearno.training import parallel
from linearno.training.config import TrainingConfig
from linearno.training.ema import Ema
from linearno.training.flat_adam import FlatAdam
from linearno.training.losses import channel_scale, make_loss
from linearno.training.optimizer import Schedule, apply_gradients, make_optimizer
from linearno.training.predict import predict_batch
from linearno.training.setup import TrainingSetup
from linearno.training.step_graphs import StepGraphs
from linearno.training.tasks import POINTS_STREAM, TRAINING_STREAM, Drawn

log = logging.getLogger(__name__)

MakeOptimizer = Callable[[nn.Module, TrainingConfig], Optimizer]


@dataclass
class TrainState:
    """All that changes while a run trains; with the data it determines the rest of the run."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    ema: Ema | None
    losses: Float[Tensor, "K"]  # mean per sample of each step of the current epoch; zero for steps to come
    grad_norms: Float[Tensor, "K"]
    epoch: int = 0  # finished epochs
    step: int = 0  # finished steps of the current epoch
    lr: float = 0.0  # of the last step
    seconds: float = 0.0  # spent in the current epoch
    best: float | None = None  # validation error
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.losses.device

    @property
    def total_steps(self) -> int:
        return self.epoch * len(self.losses) + self.step

    def keep_if_best(self, validation: float) -> None:
        if self.best is None or validation < self.best:
            self.best = validation
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def load_result(self) -> None:
        """Load the weights that are the result of the run: the best, the averaged, or the last ones."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)
        elif self.ema:
            self.ema.copy_to(self.model)


class Trainer:
    """Trains a model step by step: `step(index)` takes the samples at `index`.

    On CUDA the weight update is captured as a CUDA graph if `config.capture` allows it. Updates that several
    processes share are not captured, nor are those whose batches the host assembles: packed meshes and drawn
    points. Learning rate and random choices are set by the host before each update.

    Args:
        setup: model, data and settings; model and scaler are moved to the device.
        device: where to train.
        optimizer: makes the optimiser.
        side_streams: compute weight gradients on side CUDA streams, in models that allow it.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        device: torch.device,
        *,
        optimizer: MakeOptimizer = make_optimizer,
        side_streams: bool = True,
    ):
        config, spec = setup.config, setup.train.spec
        self.task, self.seed, self.config = setup.task, setup.seed, config
        self.grid = parallel.process_grid(config.shards, device.type)
        self.scaler, self.data = setup.scaler.to(device), self.grid.points(setup.train).to(device)
        scale = channel_scale(self.scaler, setup.train) if config.loss.scaled else None
        self.loss = make_loss(
            config.loss, spec.grid, scale, partial=bool(spec.masked_outputs), own=setup.loss
        )
        model = _on_device(setup.model, device)
        if isinstance(model, Recomputable):
            model.recompute = config.recompute
        steps, made = ceil(len(setup.train) / (config.batch * config.accumulate)), optimizer(model, config)
        ema = None if config.ema is None else Ema(model, config.ema)
        losses, grad_norms = (torch.zeros(steps, device=device) for _ in range(2))
        self.state = TrainState(model, made, Schedule(made, config, steps), ema, losses, grad_norms)
        self.predict = partial(predict_batch, model, self.scaler, precision=config.precision)
        self.draws_on_host = self.data.ragged or config.points is not None
        surface = self.data.surface if config.keep_surface else None
        self._host_data = replace(self.data, surface=None if surface is None else surface.cpu())
        cuda = device.type == "cuda"
        self.side_streams = side_streams and cuda and fused_parameters(model)
        narrow = cuda and config.precision == "bf16"
        self.weight_cache = WeightCache(model.parameters(), torch.bfloat16) if narrow else None
        self.graphs = self._step_graphs()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Around all steps: convolutions sum in a fixed order, so that runs repeat to the bit."""
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            with self.graphs.on_stream() if self.graphs else nullcontext():
                yield
        finally:
            torch.backends.cudnn.deterministic = before

    def step(self, index: Tensor) -> None:
        """Update the weights for each random choice of the task (usually one), then advance the schedule.

        The mean loss and gradient norm of the updates go into the state.
        """
        state = self.state
        parallel.seed_rank(self.seed, state.total_steps)
        for count, drawn in enumerate(self._draws(len(index)), start=1):
            if isinstance(state.optimizer, FlatAdam):
                state.optimizer.prepare()
            if self.graphs is None:
                loss, grad_norm = self.update(index, drawn)
            else:
                loss, grad_norm = self.graphs(self.update, index, drawn)
            state.losses[state.step].lerp_(loss.to(state.losses), 1 / count)
            state.grad_norms[state.step].lerp_(grad_norm.to(state.grad_norms), 1 / count)
        state.lr = float(state.optimizer.param_groups[0]["lr"])
        state.schedule.after_step()
        state.step += 1

    def update(self, index: Tensor, drawn: Drawn = None) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Draw, forward, loss, backward, optimise: the mean loss per sample, and the norm before clipping.

        The gradient is that of all samples at `index` as one batch, also if they are accumulated in parts or
        shared among processes. Nothing here waits for the device.
        """
        state, task, reduction = self.state, self.task, self.config.loss.reduction
        share = parallel.shard_batch(index, self.grid)
        parts = share.parts(self.config.batch)
        draws = [drawn] * len(parts)
        if drawn is not None and task.per_sample_draw:
            draws = list(parallel.shard_batch(drawn, self.grid).parts(self.config.batch))
        overlap = self.side_streams and len(parts) == 1  # needs a backward pass that starts without gradients
        state.optimizer.zero_grad(set_to_none=True)
        total = self.data.targets.new_zeros(())
        with self.weight_cache.activate() if self.weight_cache else nullcontext(), sharded(self.grid.group):
            for part, of_part in zip(parts, draws, strict=True):
                seen, truth = task.training_pairs(self._batch(part), of_part)
                with overlap_weight_gradients(state.device) if overlap else nullcontext():
                    prediction = task.unroll(self.predict, seen) if task.unrolls else self.predict(seen)
                    loss = self.loss(prediction, truth)
                    if reduction == "mean":
                        loss = loss * (len(part) / len(share.index))
                    loss.backward()
                total += loss.detach()
            mean = total if reduction == "mean" else total / len(share.index)
            mean = share.join(state.model, mean, reduction)
            grad_norm = apply_gradients(state.model, state.optimizer, self.config.clip)
        if state.ema:
            state.ema.update(state.model)
        return mean, grad_norm

    def _draws(self, samples: int) -> Iterable[Drawn]:
        """The random choices of the task, from seed and step alone: a resumed run repeats them."""
        whole = self.data.coords.shape[-2]
        shape = (samples, min(whole, self.config.points or whole), self.data.targets.shape[-1])
        draws = self.task.draws(shape, self.seed, TRAINING_STREAM, self.state.total_steps)
        return [None] if draws is None else draws.to(self.state.device, non_blocking=True).unbind()

    def _batch(self, index: Tensor) -> Batch:
        """All points of each sample, or `config.points` of them drawn from seed, epoch and sample."""
        count = self.config.points
        if count is None:
            return self.data.batch(index)
        kept = []
        for sample in index.tolist():
            points, surface = points_and_surface(self._host_data, sample)
            generator = torch_generator(self.seed, POINTS_STREAM, self.state.epoch, sample)
            kept.append(draw_points(points, count, generator, surface))
        return self.data.batch(index, kept)

    def _step_graphs(self) -> StepGraphs | None:
        model, optimizer = self.state.model, self.state.optimizer
        replayable = isinstance(optimizer, FlatAdam) or optimizer.defaults.get("capturable", False)
        cuda = self.state.device.type == "cuda"
        if not (self.config.capture and cuda and replayable and parallel.size() == 1):
            return None
        if not capturable(model) or self.draws_on_host:
            reason = "its meshes differ from batch to batch"
            if not capturable(model):
                reason = f"{type(model).__name__} does not set `capturable = True`"
            log.info("the training step is not captured as a CUDA graph: %s", reason)
            return None
        owners = (self.state, self.scaler, self.data, self.loss, self.weight_cache)
        return StepGraphs(optimizer, self.state.device, owners)


def _on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` on the device; on CUDA with convolution weights in channels-last order, as cuDNN prefers."""
    model = model.to(device)
    for module in model.modules() if device.type == "cuda" else ():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            order = torch.channels_last if isinstance(module, nn.Conv2d) else torch.channels_last_3d
            module.weight.data = module.weight.data.to(memory_format=order)
    return model
