"""The training step as CUDA graphs: captured once for each batch size, then replayed without the host."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from linearno.core.cuda_graph import CapturedFunction, capture
from linearno.training.tasks import Drawn

log = logging.getLogger(__name__)

WARM_UP_STEPS = 3  # eager: kernels are compiled and libraries allocate their workspaces

Result = tuple[Tensor, Tensor]
Update = Callable[[Tensor, Drawn], Result]


class StepGraph(NamedTuple):
    """A captured step, and the tensors from which it reads its samples."""

    replay: CapturedFunction[Result]
    samples: Tensor
    drawn: Drawn


class StepGraphs:
    """Calls a step eagerly at first, then replays it: the same kernels on the same memory.

    The last batch of an epoch may be smaller and has a separate graph. All graphs share one memory pool,
    since they run one after another.

    Args:
        optimizer: its step is part of the captured one; its `layout` changes when weights or moments move.
        device: a CUDA device.
        keep_alive: owners of all tensors that the step reads.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, keep_alive: object):
        self.optimizer, self.keep_alive = optimizer, keep_alive
        self.stream = torch.cuda.Stream(device)
        self._graphs: dict[int, StepGraph] = {}  # by number of samples
        self._eager: Counter[int] = Counter()  # eager steps, by number of samples
        self._layout = self._current_layout()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Run everything inside the block on the stream of the captures."""
        device = self.stream.device
        self.stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            torch.cuda.current_stream(device).wait_stream(self.stream)

    def __call__(self, update: Update, index: Tensor, drawn: Drawn) -> Result:
        """`update(index, drawn)`. It is passed to each call because its owner holds these graphs."""
        samples = len(index)
        if self._graphs and self._layout != self._current_layout():
            self._graphs.clear()  # they write to memory that the weights have left
            self._eager.clear()
        if self._eager.total() < WARM_UP_STEPS or not self._eager[samples]:
            self._eager[samples] += 1
            return update(index, drawn)
        if samples not in self._graphs:
            self._graphs[samples] = self._capture(
                update, index.clone(), None if drawn is None else drawn.clone()
            )
        graph = self._graphs[samples]
        graph.samples.copy_(index)
        if drawn is not None and graph.drawn is not None:
            graph.drawn.copy_(drawn)
        return graph.replay()

    def _capture(self, update: Update, index: Tensor, drawn: Drawn) -> StepGraph:
        self.optimizer.zero_grad(set_to_none=True)  # frees memory for the pool of the graphs
        replay = capture(
            lambda: update(index, drawn),
            stream=self.stream,
            pool=next(iter(self._graphs.values())).replay.pool if self._graphs else None,
            keep_alive=(self.keep_alive, index, drawn),
        )
        self._layout = self._current_layout()
        log.info("the training step of %d samples is captured as a CUDA graph", len(index))
        return StepGraph(replay, index, drawn)

    def _current_layout(self) -> int:
        return getattr(self.optimizer, "layout", 0)
