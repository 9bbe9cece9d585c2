"""The step of a run: eager anywhere, and on CUDA recorded once as a graph and replayed without the host."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from linearno.core.cuda_graph import CapturedFunction, capture
from linearno.core.randomness import torch_generator
from linearno.data.field_data import FieldData
from linearno.data.point_sampling import draw_points, points_and_surface
from linearno.data.sample import Batch
from linearno.data.scaler import Scaler
from linearno.nn.protocol import capturable
from linearno.ops import WeightCache, sharded
from linearno.training import parallel
from linearno.training.config import TrainingConfig
from linearno.training.flat_adam import FlatAdam
from linearno.training.losses import Loss
from linearno.training.state import TrainState
from linearno.training.step import train_step
from linearno.training.tasks import IN_TRAINING, OF_MESH, Drawn, Task

log = logging.getLogger(__name__)

RECENT_STEPS = 8
WARM_UP = 3  # eager steps before a capture: libraries set themselves up


class Recorded(NamedTuple):
    """A captured step, and the tensors that it reads its batch from. Graphs use the same memory one after
    another."""

    step: CapturedFunction[tuple[Tensor, Tensor]]
    samples: Tensor
    drawn: Drawn


class Engine:
    """Calls of `step(index)` train on the samples at `index` and write loss and gradient norm into the state.

    The first steps of a run are eager, so that kernels are compiled and libraries allocate their workspaces.
    Then, if `config.capture` allows it, the step is captured, for a shorter last batch of an epoch by itself:
    the same kernels on the same memory, so the two ways agree to rounding. Steps that several processes share
    stay eager, and so do batches of packed or drawn points, whose `index` is read on the host. Whatever the
    host decides (the learning rate, the place of the loss) stays outside.
    """

    def __init__(
        self,
        state: TrainState,
        scaler: Scaler,
        data: FieldData,
        loss: Loss,
        config: TrainingConfig,
        seed: int = 0,
        task: Task | None = None,
        among: parallel.ProcessGrid | None = None,
    ):
        self.state, self.scaler, self.data, self.loss, self.config = state, scaler, data, loss, config
        self.seed, self.task, self.among = seed, task or Task(), among or parallel.process_grid()
        cuda, alone = state.device.type == "cuda", parallel.size() == 1
        fused = cuda and alone and isinstance(state.optimizer, FlatAdam)
        self.capture = fused and config.capture and capturable(state.model)
        self.by_host = data.ragged or config.points is not None
        surface = data.surface if config.keep_surface else None
        self._on_host = replace(data, surface=None if surface is None else surface.cpu())
        if fused and config.capture and not self.capture:
            log.info(
                "the training step is not captured as a CUDA graph: %s does not set `capturable = True`",
                type(state.model).__name__,
            )
        if self.capture and self.by_host:
            self.capture = False
            log.info(
                "the training step is not captured as a CUDA graph: its meshes differ from batch to batch"
            )
        self.stream = torch.cuda.Stream(state.device) if self.capture else None
        narrow = cuda and config.precision == "bf16"
        self.weight_cache = WeightCache(state.model.parameters(), torch.bfloat16) if narrow else None
        self._recorded: dict[int, Recorded] = {}  # by the samples of a step
        self._layout: int | None = None  # of the optimizer's memory in those
        self._done: Counter[int] = Counter()
        self.steps = 0  # taken by this engine
        self._times: deque[float] = deque(maxlen=RECENT_STEPS)  # when the last steps began

    def __enter__(self) -> "Engine":
        """All work of a captured run, before and after the capture, belongs on one stream of its own. Sums of
        convolutions are taken in the same order every time, so that runs repeat to the bit."""
        self._repeats = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        self._scope: AbstractContextManager[None] = nullcontext()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.state.device))
            self._scope = torch.cuda.stream(self.stream)
        self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        torch.backends.cudnn.deterministic = self._repeats
        self._scope.__exit__(None, None, None)
        if self.stream is not None:
            torch.cuda.current_stream(self.state.device).wait_stream(self.stream)

    def step(self, index: Tensor) -> None:
        """One optimiser step, or as many as the task makes with one batch; the schedule moves once.

        Loss and gradient norm are the means over those.
        """
        state = self.state
        self._times.append(time.perf_counter())
        parallel.seed_rank(self.seed, state.total_steps)
        for count, drawn in enumerate(self._draws(len(index)), start=1):
            if isinstance(state.optimizer, FlatAdam):
                state.optimizer.prepare()
            loss, grad_norm = self._way(index, drawn)()
            state.losses[state.step].lerp_(loss.to(state.losses), 1 / count)
            state.grad_norms[state.step].lerp_(grad_norm.to(state.grad_norms), 1 / count)
        state.lr = float(state.optimizer.param_groups[0]["lr"])
        state.schedule.after_step()
        state.step += 1
        self.steps += 1

    def seconds_per_step(self) -> float:
        """Mean time of the later half of the steps so far, by which libraries and kernels are set up."""
        first = len(self._times) // 2
        return (time.perf_counter() - self._times[first]) / (len(self._times) - first)

    def _draws(self, samples: int) -> Iterable[Drawn]:
        """By the host, from seed and step alone: a resumed run draws what it would have drawn."""
        whole = self.data.coords.shape[-2]
        shape = (samples, min(whole, self.config.points or whole), self.data.targets.shape[-1])
        draws = self.task.draws(shape, self.seed, IN_TRAINING, self.state.total_steps)
        return [None] if draws is None else draws.to(self.state.device, non_blocking=True).unbind()

    def _batch(self, index: Tensor) -> Batch:
        """Of each sample all points, or those drawn for it: from seed, epoch and sample alone."""
        count = self.config.points
        if count is None:
            return self.data.batch(index)
        kept = []
        for sample in index.tolist():
            points, surface = points_and_surface(self._on_host, sample)
            generator = torch_generator(self.seed, OF_MESH, self.state.epoch, sample)
            kept.append(draw_points(points, count, generator, surface if self.config.keep_surface else None))
        return self.data.batch(index, kept)

    def _way(self, index: Tensor, drawn: Drawn) -> Callable[[], tuple[Tensor, Tensor]]:
        samples = len(index)
        if self._recorded and self._layout != getattr(self.state.optimizer, "layout", None):
            self._recorded.clear()  # they write to memory that the weights have left
            self._done.clear()
        if not self.capture or self._done.total() < WARM_UP or not self._done[samples]:
            self._done[samples] += 1
            return lambda: self._eager(index, drawn)
        if samples not in self._recorded:
            self._recorded[samples] = self._record(index, drawn)
        return lambda: self._replay(self._recorded[samples], index, drawn)

    def _eager(self, index: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """From indices to changed weights: nothing here waits for the device."""
        result = self._change(index, drawn)
        if self.state.ema:
            self.state.ema.update(self.state.model)
        return result

    def _change(self, index: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor]:
        state, config = self.state, self.config
        share = parallel.shard_batch(index, self.among)
        batches = [self._batch(part) for part in share.parts(config.batch)]
        own: list[Drawn] = [drawn] * len(batches)
        if drawn is not None and self.task.draws_each:
            own = list(parallel.shard_batch(drawn, self.among).parts(config.batch))
        with self.weight_cache.activate() if self.weight_cache else nullcontext(), sharded(self.among.group):
            return train_step(
                state.model,
                self.scaler,
                batches,
                self.loss,
                state.optimizer,
                config,
                share,
                self.task,
                own,
            )

    def _record(self, index: Tensor, drawn: Drawn) -> Recorded:
        index, drawn = index.clone(), None if drawn is None else drawn.clone()
        self.state.optimizer.zero_grad(set_to_none=True)
        assert self.stream is not None
        step = capture(
            lambda: self._eager(index, drawn),
            stream=self.stream,
            pool=next(iter(self._recorded.values())).step.pool if self._recorded else None,
            # these make no cycle
            keep_alive=(self.state, self.scaler, self.data, self.loss, self.weight_cache, index, drawn),
        )
        self._layout = getattr(self.state.optimizer, "layout", None)
        log.info("the training step of %d samples is captured as a CUDA graph", len(index))
        return Recorded(step, index, drawn)

    def _replay(self, recorded: Recorded, index: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor]:
        recorded.samples.copy_(index)
        if drawn is not None and recorded.drawn is not None:
            recorded.drawn.copy_(drawn)
        return recorded.step()
