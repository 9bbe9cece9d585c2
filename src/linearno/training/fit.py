"""Training from first to last epoch: stopped at any step and resumed, it gives what it would have given."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linearno.core.atomic_io import writable_folder
from linearno.core.device import device_name, set_matmul_precision
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data.benchmark import PerSample, relative_l2
from linearno.data.field_data import FieldData
from linearno.data.scaler import Scaler
from linearno.nn.protocol import (
    Recomputable,
)
from linearno.training import parallel
from linearno.training.checkpoint import Checkpoints
from linearno.training.config import TrainingConfig
from linearno.training.ema import Ema
from linearno.training.history import EpochRecord, append_history, cut_history, read_history
from linearno.training.interrupt import Interrupted, StopRequest, stop_on_signals
from linearno.training.losses import Loss, make_loss
from linearno.training.optimizer import make_optimizer
from linearno.training.predict import predict, sample_errors
from linearno.training.requirements import require_trainable
from linearno.training.schedule import Schedule
from linearno.training.state import TrainState
from linearno.training.stepper import Engine
from linearno.training.tasks import Task

log = logging.getLogger(__name__)
RISE = 2  # times its lowest: a loss that is worth a warning
ESTIMATE_STEPS = 8  # steps before the remaining time is estimated


def fit(
    model: nn.Module,
    scaler: Scaler,
    train: FieldData,
    config: TrainingConfig,
    *,
    seed: int,
    device: torch.device,
    folder: Path,
    fingerprint: str,
    task: Task | None = None,
    metric: PerSample = relative_l2,
    loss: PerSample | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> None:
    """Train `model` in place, or go on where the checkpoint in `folder` stands.

    `fingerprint` identifies the whole configuration: a folder that holds another one is refused. `folder`
    gets `history.jsonl` and `checkpoint/`. Ctrl-C and SIGTERM raise `Interrupted` once a checkpoint is
    written. The initial weights, the data, `config` and `seed` determine the result, on a CPU to the bit.
    Inside `parallel.processes` all processes call this together, and the first one writes. `metric` is the
    error of the validation samples, `loss` the benchmark's, for `training.loss.kind=benchmark`.
    """
    require_trainable(model, train, config, task or Task(), loss)
    if parallel.is_main_process():
        writable_folder(folder)
    set_matmul_precision(config.precision)
    fitted, held_out = split_validation(train, config.validation, seed)
    among = parallel.process_grid(config.shards, device.type)
    run = _Run(
        config=config,
        task=task or Task(),
        seed=seed,
        scaler=scaler.to(device),
        data=among.points(fitted).to(device),
        held_out=held_out,
        loss=make_loss(
            config.loss,
            train.spec.grid,
            channel_scale(scaler, fitted).to(device) if config.loss.scaled else None,
            partial=bool(train.spec.masked_outputs),
            own=loss,
        ),
        metric=metric,
        state=start(on_device(model, device), config, samples=len(fitted), device=device),
        checkpoints=Checkpoints(folder / "checkpoint", fingerprint, checkpoint_settings(seed, config)),
        history=folder / "history.jsonl",
        among=among,
    )
    run.resume()
    with stop_on_signals() as stop:
        run.train(stop, on_epoch)
    run.state.load_result()


def checkpoint_settings(seed: int, config: TrainingConfig) -> dict[str, Any]:
    """What a checkpoint says of its configuration, to name a difference."""
    return {"seed": seed, "training": config.model_dump(mode="json")}


def channel_scale(scaler: Scaler, data: FieldData) -> Tensor:
    """The deviation of each channel; less of one that is known at few points, so that it counts as much."""
    if not data.spec.masked_outputs:
        return scaler.outputs.std
    known = (~data.targets.isnan()).to(scaler.outputs.std).flatten(0, -2).mean(dim=0)
    return scaler.outputs.std * known.sqrt()


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` there, with the weights of convolutions as the library likes them: on CUDA, channels last."""
    model = model.to(device)
    for module in model.modules() if device.type == "cuda" else ():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            order = torch.channels_last if isinstance(module, nn.Conv2d) else torch.channels_last_3d
            module.weight.data = module.weight.data.to(memory_format=order)
    return model


def split_validation(train: FieldData, count: int, seed: int) -> tuple[FieldData, FieldData | None]:
    """What to train on and what to validate on: the last `count` samples of a seeded permutation."""
    if count >= len(train):
        raise UserError(f"training.validation={count} leaves none of {len(train)} samples to train on")
    if count == 0:
        return train, None
    order = torch.randperm(len(train), generator=torch_generator(seed))
    return train.subset(order[:-count]), train.subset(order[-count:])


def start(model: nn.Module, config: TrainingConfig, *, samples: int, device: torch.device) -> TrainState:
    """A run's state before its first step."""
    if isinstance(model, Recomputable):
        model.recompute = config.recompute
    steps = ceil(samples / (config.batch * config.accumulate))
    optimizer = make_optimizer(model, config)
    return TrainState(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(optimizer, config, steps),
        ema=None if config.ema is None else Ema(model, config.ema),
        losses=torch.zeros(steps, device=device),
        grad_norms=torch.zeros(steps, device=device),
    )


@dataclass(frozen=True)
class _Run:
    """What stays the same during a run, around the state that changes."""

    config: TrainingConfig
    task: Task
    seed: int
    scaler: Scaler
    data: FieldData
    held_out: FieldData | None
    loss: Loss
    metric: PerSample
    state: TrainState
    checkpoints: Checkpoints
    history: Path
    among: parallel.ProcessGrid
    timed: list[bool] = field(default_factory=list)  # whether the estimate was given
    saved: list[float] = field(default_factory=lambda: [-inf])  # when checkpoints were written, by the clock

    def resume(self) -> None:
        """Go to the last checkpoint, or to a start that depends on the seed alone."""
        torch.manual_seed(self.seed)  # dropout and the like
        if saved := self.checkpoints.read():
            self.state.unpack(*saved)
        parallel.require_same_start(self.state.model, self.state.total_steps)
        if parallel.is_main_process():
            cut_history(self.history, self.state.epoch)
        device, precision = self.state.device, self.config.precision
        if precision == "tf32" and device.type == "cpu":
            log.warning("tf32 was asked for; a CPU has none and computes in fp32")
        if (samples := self.config.batch * self.config.accumulate) < self.among.replicas:
            log.warning(
                "%d samples a step for %d processes: some have nothing to do", samples, self.among.replicas
            )
        if self.among.shards > 1:
            log.info("%d processes share the points of each sample", self.among.shards)
        parameters = sum(weight.numel() for weight in self.state.model.parameters())
        log.info(
            "%s; %s; %d parameters; %d samples", device_name(device), precision, parameters, len(self.data)
        )
        log.info("%d steps done of %d epochs", self.state.total_steps, self.config.epochs)

    def train(self, stop: StopRequest, on_epoch: Callable[[EpochRecord], None] | None) -> None:
        with Engine(
            self.state, self.scaler, self.data, self.loss, self.config, self.seed, self.task, self.among
        ) as engine:
            self._train(engine, stop, on_epoch)
        if (stopping := parallel.all_reduce_max(stop.number)) is not None:
            raise Interrupted(stopping, self.config.epochs, len(self.state.losses))

    def _train(
        self, engine: Engine, stop: StopRequest, on_epoch: Callable[[EpochRecord], None] | None
    ) -> None:
        lowest = min((record.loss for record in read_history(self.history)), default=inf)
        while self.state.epoch < self.config.epochs:
            self.train_epoch(engine, stop)
            stopping = parallel.all_reduce_max(
                stop.number
            )  # read once: what comes later waits for the next step
            record = self.close_epoch(stopping=stopping is not None)
            rose = record.loss > RISE * lowest
            if rose and parallel.is_main_process():
                log.warning(
                    "the loss rose from %.3g to %.3g in epoch %d and may not come back; "
                    "a lower training.lr or training.clip=1 prevents it",
                    *(lowest, record.loss, record.epoch),
                )
            lowest = record.loss if rose else min(lowest, record.loss)
            if on_epoch and parallel.is_main_process():
                on_epoch(record)
            if stopping is not None:
                raise Interrupted(stopping, record.epoch, len(self.state.losses))

    def train_epoch(self, engine: Engine, stop: StopRequest) -> None:
        """The rest of the running epoch. Its order is drawn from seed and epoch alone."""
        state, config = self.state, self.config
        order = torch.randperm(len(self.data), generator=torch_generator(self.seed, state.epoch))
        where = torch.device("cpu") if engine.by_host else state.device
        steps = order.to(where).split(config.batch * config.accumulate)
        state.model.train()
        started = time.perf_counter() - state.seconds
        for index in steps[state.step :]:
            engine.step(index)
            if state.device.type == "cpu":
                self._check_finite()
            state.seconds = time.perf_counter() - started
            self._estimate(engine)
            stop.listen()
            stopping = parallel.all_reduce_max(stop.number)
            if stopping is not None and state.step < len(steps):
                self._check_finite()
                self._save()
                raise Interrupted(stopping, state.epoch + 1, state.step)
        self._check_finite()  # on CUDA the first wait for the device in this epoch
        state.seconds = time.perf_counter() - started

    def _estimate(self, engine: Engine) -> None:
        """Log once, after a few steps, how long the rest of the run will take."""
        state, steps = self.state, len(self.state.losses)
        if self.timed or engine.steps < min(ESTIMATE_STEPS, steps):
            return
        if state.device.type == "cuda":
            torch.cuda.synchronize(state.device)
        self.timed.append(True)
        left = self.config.epochs * steps - state.total_steps
        if left > 0 and parallel.is_main_process():
            each = engine.seconds_per_step()
            log.info("about %s for the %d epochs to come", format_duration(each * left), ceil(left / steps))

    def close_epoch(self, *, stopping: bool) -> EpochRecord:
        """Validate, write the history, and a checkpoint where one is due."""
        state, config = self.state, self.config
        state.schedule.after_epoch()
        record = self._record(self._validate())
        state.epoch, state.step, state.seconds = state.epoch + 1, 0, 0.0
        state.losses.zero_()
        state.grad_norms.zero_()
        if parallel.is_main_process():
            append_history(self.history, record)  # before the checkpoint: a resumed run cuts, it cannot add
        if stopping or state.epoch == config.epochs or self._checkpoint_due():
            self._save()
        return record

    def _check_finite(self) -> None:
        state = self.state
        bad = ~(state.losses + state.grad_norms).isfinite()
        if bad.any():
            where = f"epoch {state.epoch + 1}, step {int(bad.nonzero()[0]) + 1}"
            raise UserError(
                f"the loss or its gradient is not finite at {where}; the last good checkpoint is kept; "
                "try a lower training.lr, training.precision=fp32 or training.clip=1"
            )

    def _validate(self) -> float | None:
        """Mean error of the held-out samples, with the weights that would be the result."""
        state, config = self.state, self.config
        if self.held_out is None:
            return None
        share = parallel.shard_batch(torch.arange(len(self.held_out)))
        mine = self.held_out.subset(share.index)
        with state.ema.lent_to(state.model) if state.ema else nullcontext():
            prediction = predict(
                state.model,
                self.scaler,
                mine,
                batch=config.eval_batch,
                device=state.device,
                precision=config.eval_precision,
                task=self.task,
                seed=self.seed,
            )
            errors = sample_errors(self.metric, prediction, mine)
            error = share.mean(errors.mean()).item()
            state.keep_if_best(error)
        return error

    def _record(self, validation: float | None) -> EpochRecord:
        state, samples = self.state, len(self.data)
        sizes = torch.full_like(state.losses, self.config.batch * self.config.accumulate).double().cpu()
        sizes[-1] = samples - sizes[:-1].sum()
        return EpochRecord(
            epoch=state.epoch + 1,
            step=state.total_steps,
            loss=float(sizes @ state.losses.cpu().double()) / samples,
            lr=state.lr,
            grad_norm=state.grad_norms.cpu().double().mean().item(),
            seconds=state.seconds,
            samples_per_second=samples / state.seconds,
            validation=validation,
            processes=parallel.size(),
        )

    def _checkpoint_due(self) -> bool:
        """As the config and the clock say; clocks differ, so processes agree."""
        epochs, seconds = self.config.checkpoint_epochs, self.config.checkpoint_seconds
        if self.state.epoch % epochs:
            return False
        return (
            parallel.all_reduce_max(1 if time.monotonic() - self.saved[-1] >= seconds else None) is not None
        )

    def _save(self) -> None:
        self.saved.append(time.monotonic())
        if parallel.is_main_process():
            self.checkpoints.write(self.state.total_steps, *self.state.pack())
        parallel.all_reduce_max(None)  # nobody leaves before it is written
