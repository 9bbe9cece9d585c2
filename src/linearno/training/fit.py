"""Training from the first to the last epoch. A run stopped at any step resumes to the same result."""

import logging
import time
from contextlib import nullcontext
from math import ceil, inf
from pathlib import Path

import torch
from torch import Tensor

from linearno.core.atomic_io import writable_folder
from linearno.core.device import device_name, set_matmul_precision
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.nn.protocol import SelfFitting
from linearno.training import parallel
from linearno.training.checkpoint import Checkpoints, checkpoint_settings, pack_state, unpack_state
from linearno.training.closed_form import OnEpoch, fit_closed_form
from linearno.training.history import EpochRecord, append_history, cut_history, has_stalled, read_history
from linearno.training.interrupt import Interrupted, StopRequest, stop_on_signals
from linearno.training.predict import predict, sample_errors
from linearno.training.setup import TrainingSetup
from linearno.training.trainer import Trainer

log = logging.getLogger(__name__)
LOSS_SPIKE_FACTOR = 2  # warn if the loss exceeds its lowest value by this factor
LONG_EPOCH_SECONDS = 20.0  # without a checkpoint; then one is written within the epoch
WARM_UP_STEPS = 4  # the remaining time is estimated from as many steps after these


def fit(
    setup: TrainingSetup,
    *,
    device: torch.device,
    folder: Path,
    fingerprint: str,
    on_epoch: OnEpoch | None = None,
    deadline: float = inf,
) -> None:
    """Train `setup.model` in place, or resume from the checkpoint in `folder`.

    A model that is `SelfFitting` is fitted in closed form, without checkpoints: a stopped run starts again.
    Initial weights, data, settings and seed determine the result, on a CPU to the bit. Ctrl-C and SIGTERM
    raise `Interrupted` after a checkpoint is written. Inside `parallel.processes` all processes call this
    together, and the first one writes.

    Args:
        setup: model, data and settings, already checked.
        device: where to train.
        folder: for `history.jsonl` and `checkpoint/`.
        fingerprint: identifies the whole configuration; a folder with a checkpoint of another is refused.
        on_epoch: called after every epoch.
        deadline: `time.monotonic()` after which training stops as after SIGTERM.
    """
    if parallel.is_main_process():
        writable_folder(folder)
    if isinstance(setup.model, SelfFitting):
        fit_closed_form(setup, device=device, folder=folder, on_epoch=on_epoch)
        return
    set_matmul_precision(setup.config.precision)
    run = _Run(setup, device, folder, fingerprint)
    run.resume()
    with stop_on_signals(deadline) as stop, run.trainer.active():
        while run.state.epoch < setup.config.epochs and not run.stalled:
            for index in run.start_epoch():
                run.trainer.step(index)
                run.after_step(stop)
            run.end_epoch(stop, on_epoch)
        if (number := parallel.all_reduce_max(stop.number)) is not None:
            raise Interrupted(number, setup.config.epochs, len(run.state.losses))
    run.state.load_result()


class _Run:
    """The bookkeeping around the training steps: resuming, history, validation and checkpoints."""

    def __init__(self, setup: TrainingSetup, device: torch.device, folder: Path, fingerprint: str):
        self.setup, self.config = setup, setup.config
        self.trainer = Trainer(setup, device)
        self.state = self.trainer.state
        self.history = folder / "history.jsonl"
        settings = checkpoint_settings(setup.seed, setup.config)
        self.checkpoints = Checkpoints(folder / "checkpoint", fingerprint, settings)
        self.saved = -inf  # time of the last checkpoint
        self.began = time.monotonic()
        self.steps_taken = 0  # by this process

    def resume(self) -> None:
        """Load the last checkpoint; without one, start from random numbers that depend on the seed alone."""
        state, config, grid = self.state, self.config, self.trainer.grid
        torch.manual_seed(self.setup.seed)  # dropout and the like
        if checkpoint := self.checkpoints.read():
            unpack_state(state, *checkpoint)
        parallel.require_same_start(state.model, state.total_steps)
        if parallel.is_main_process():
            cut_history(self.history, state.epoch)
        self.lowest_loss = min((record.loss for record in read_history(self.history)), default=inf)
        if config.precision == "tf32" and state.device.type == "cpu":
            log.warning("tf32 is not available on a CPU, which computes in fp32")
        if (samples := config.batch * config.accumulate) < grid.replicas:
            log.warning("%d samples a step for %d processes: some have nothing to do", samples, grid.replicas)
        if grid.shards > 1:
            log.info("%d processes share the points of each sample", grid.shards)
        device, parameters = (
            device_name(state.device),
            sum(weight.numel() for weight in state.model.parameters()),
        )
        samples = len(self.setup.train)
        log.info("%s; %s; %d parameters; %d samples", device, config.precision, parameters, samples)
        log.info("%d steps done of %d epochs", state.total_steps, config.epochs)

    @property
    def stalled(self) -> bool:
        """Whether the validation error has not fallen for `patience` epochs."""
        patience = self.config.patience
        return bool(patience) and has_stalled(read_history(self.history), patience)

    def start_epoch(self) -> tuple[Tensor, ...]:
        """Sample indices of the remaining steps, in an order that depends on seed and epoch alone."""
        state = self.state
        generator = torch_generator(self.setup.seed, state.epoch)
        order = torch.randperm(len(self.setup.train), generator=generator)
        if not self.trainer.draws_on_host:
            order = order.to(state.device)
        state.model.train()
        self.started = time.perf_counter() - state.seconds
        return order.split(self.config.batch * self.config.accumulate)[state.step :]

    def after_step(self, stop: StopRequest) -> None:
        """Stop with a checkpoint if a signal has come or, where that is known at once, the loss diverged."""
        state = self.state
        if state.device.type == "cpu":
            self._check_finite()
        state.seconds = time.perf_counter() - self.started
        self._estimate()
        stop.listen()
        number = parallel.all_reduce_max(stop.number)
        if number is not None and state.step < len(state.losses):
            self._check_finite()
            self._save()
            raise Interrupted(number, state.epoch + 1, state.step)
        if parallel.size() == 1 and self._epoch_is_long() and state.step < len(state.losses):
            self._check_finite()
            self._save()

    def end_epoch(self, stop: StopRequest, on_epoch: OnEpoch | None) -> None:
        """Validate, write the history, and a checkpoint if one is due."""
        state = self.state
        self._check_finite()  # on CUDA the first wait for the device in this epoch
        state.seconds = time.perf_counter() - self.started
        number = parallel.all_reduce_max(stop.number)  # read once: a later signal waits for the next step
        state.schedule.after_epoch()
        record = self._record(self._validate())
        state.epoch, state.step, state.seconds = state.epoch + 1, 0, 0.0
        state.losses.zero_()
        state.grad_norms.zero_()
        if parallel.is_main_process():
            append_history(self.history, record)  # before the checkpoint: a resumed run cuts, it cannot add
        if number is not None or state.epoch == self.config.epochs or self.stalled or self._checkpoint_due():
            self._save()
        self._warn_of_spike(record)
        if on_epoch and parallel.is_main_process():
            on_epoch(record)
        if number is not None:
            raise Interrupted(number, record.epoch, len(state.losses))

    def _warn_of_spike(self, record: EpochRecord) -> None:
        if record.loss <= LOSS_SPIKE_FACTOR * self.lowest_loss:
            self.lowest_loss = min(self.lowest_loss, record.loss)
            return
        if parallel.is_main_process():
            log.warning(
                "the loss rose from %.3g to %.3g in epoch %d and may not come back; "
                "a lower training.lr or training.clip=1 prevents it",
                *(self.lowest_loss, record.loss, record.epoch),
            )
        self.lowest_loss = record.loss

    def _estimate(self) -> None:
        """Log once, after a few steps, how long the rest of the run will take."""
        state, now = self.state, time.perf_counter()
        self.steps_taken += 1
        if self.steps_taken == WARM_UP_STEPS:
            self.warm = now
        if self.steps_taken != 2 * WARM_UP_STEPS:
            return
        if state.device.type == "cuda":
            torch.cuda.synchronize(state.device)
        left = self.config.epochs * len(state.losses) - state.total_steps
        if left > 0 and parallel.is_main_process():
            seconds = left * (time.perf_counter() - self.warm) / WARM_UP_STEPS
            epochs = ceil(left / len(state.losses))
            log.info("about %s for the %d epochs to come", format_duration(seconds), epochs)

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
        """Mean error of the validation samples, with the weights that would be the result."""
        state, setup = self.state, self.setup
        if setup.validation is None:
            return None
        share = parallel.shard_batch(torch.arange(len(setup.validation)))
        samples = setup.validation.subset(share.index)
        with state.ema.swapped_into(state.model) if state.ema else nullcontext():
            prediction = predict(
                state.model,
                setup.scaler,
                samples,
                batch=self.config.eval_batch,
                device=state.device,
                precision=self.config.eval_precision,
                task=setup.task,
                seed=setup.seed,
            )
            error = share.mean(sample_errors(setup.metric, prediction, samples).mean()).item()
            state.keep_if_best(error)
        return error

    def _record(self, validation: float | None) -> EpochRecord:
        state, samples = self.state, len(self.setup.train)
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
        """Whether configuration and clock ask for one; clocks differ, so the processes agree on it."""
        if self.state.epoch % self.config.checkpoint_epochs:
            return False
        due = time.monotonic() - self.saved >= self.config.checkpoint_seconds
        return parallel.all_reduce_max(1 if due else None) is not None

    def _epoch_is_long(self) -> bool:
        """Whether work since the last checkpoint, or the start, asks for one within the epoch."""
        since = time.monotonic() - max(self.saved, self.began)
        return since > max(self.config.checkpoint_seconds, LONG_EPOCH_SECONDS)

    def _save(self) -> None:
        self.saved = time.monotonic()
        if parallel.is_main_process():
            self.checkpoints.write(self.state.total_steps, *pack_state(self.state))
        parallel.all_reduce_max(None)  # all processes wait until it is written
