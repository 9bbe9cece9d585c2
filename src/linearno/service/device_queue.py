"""One queue of model calls for each device; small requests that fit together share a call.

Axes: S samples, N points, X coordinates, C channels.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from linearno.core.errors import UserError
from linearno.core.log_capture import captured_warnings
from linearno.inference import Bundle
from linearno.nn.protocol import Streamable, completes
from linearno.service.config import ServiceConfig
from linearno.service.errors import RequestError
from linearno.service.metrics import Metrics

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """Result of a job, and the warnings that the model call logged."""

    value: Any
    warnings: tuple[str, ...]


@dataclass(eq=False)
class Job:
    """Work of a device: any function of its surrogate."""

    run: Callable[[Bundle], Any]
    future: "Future[Answer]" = field(default_factory=Future)


@dataclass(eq=False)
class Prediction:
    """Arguments of `Bundle.predict`; predictions on meshes of one size share a model call."""

    inputs: Float[Tensor, "S N _"] | None
    coords: Float[Tensor, "*S N _"] | None
    steps: int | None = None
    aux: Mapping[str, ndarray] = field(default_factory=dict)
    future: "Future[Answer]" = field(default_factory=Future)

    @property
    def samples(self) -> int:
        if self.inputs is not None:
            return len(self.inputs)
        return len(self.coords) if self.coords is not None and self.coords.dim() == 3 else 1

    @property
    def points(self) -> int:
        """Points of one sample; 0 if those of the training data are meant."""
        part = self.inputs if self.inputs is not None else self.coords
        return 0 if part is None else part.shape[-2]

    def group(self, bundle: Bundle) -> Hashable | None:
        """Predictions with the same value share a call; None for one that does not."""
        if self.aux or completes(bundle.model):
            return None
        return self.steps, self.points, self.inputs is None, self.coords is None


class DeviceQueue:
    """Calls of a surrogate, in the order of arrival, in a thread of their own.

    Args:
        bundle: the surrogate on its device.
        config: limits.
        metrics: counters.
    """

    def __init__(self, bundle: Bundle, config: ServiceConfig, metrics: Metrics):
        self.bundle, self._config, self._metrics = bundle, config, metrics
        self.name = str(bundle.device)
        self._waiting: deque[Job | Prediction] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"queue of {self.name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, job: Job | Prediction) -> "Future[Answer]":
        """Append a job; refuse it if the queue is full or closed."""
        with self._changed:
            if self._closed:
                raise RequestError(503, "the service is stopping")
            if len(self._waiting) >= self._config.queue:
                raise RequestError(503, f"{len(self._waiting)} requests are waiting; send it again later")
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Finish the jobs in the queue and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            ready = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if ready:
                self._answer(ready)

    def _next(self) -> list[Job | Prediction] | None:
        """The next job and those that share its model call; None when the queue is closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            first = self._waiting.popleft()
            group = first.group(self.bundle) if isinstance(first, Prediction) else None
            if group is None or not isinstance(first, Prediction):
                return [first]
            jobs, until = [first], time.monotonic() + self._config.batch_wait
            limit = min(self._config.batch, self._config.batch_points // max(first.points, 1))
            while True:
                for job in [
                    j for j in self._waiting if isinstance(j, Prediction) and j.group(self.bundle) == group
                ]:
                    if sum(other.samples for other in (*jobs, job)) <= limit:
                        self._waiting.remove(job)
                        jobs.append(job)
                left = until - time.monotonic()
                if left <= 0 or self._closed or sum(job.samples for job in jobs) >= limit:
                    return [*jobs]
                self._changed.wait(left)

    def _answer(self, jobs: list[Job | Prediction]) -> None:
        """Run jobs and set their results; an error of a shared call is that of each job alone."""
        try:
            with captured_warnings() as warnings:
                values = self._run(jobs)
        except UserError as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            alone = True
        except BaseException as error:
            log.exception("a model call failed")
            for job in jobs:
                job.future.set_exception(error)
            return
        else:
            alone = len(jobs) > 1 and bool(warnings)
        if alone:
            for job in jobs:
                self._answer([job])
            return
        for job, value in zip(jobs, values, strict=True):
            job.future.set_result(Answer(value, tuple(warnings)))

    def _run(self, jobs: list[Job | Prediction]) -> list[Any]:
        predictions = [job for job in jobs if isinstance(job, Prediction)]
        if not predictions:
            return [job.run(self.bundle) for job in jobs if isinstance(job, Job)]
        samples = sum(job.samples for job in predictions)
        self._metrics.batch(self.name, samples)
        first = predictions[0]
        if len(predictions) == 1:
            coords, inputs = first.coords, first.inputs
        else:
            coords = _join([_for_each_sample(job.coords, job.samples) for job in predictions])
            inputs = _join([job.inputs for job in predictions])
        outputs = self.bundle.predict(
            inputs,
            coords,
            batch=max(1, min(self._config.batch, self._config.batch_points // max(first.points, 1))),
            steps=first.steps,
            aux=first.aux,
            memory=self._memory(first),
        )
        return list(outputs.split([job.samples for job in predictions]))

    def _memory(self, job: Prediction) -> int | None:
        """Memory limit of a large mesh; None to take all points at once."""
        model = self.bundle.model
        large = job.points > self._config.chunked_points
        return (
            self._config.memory if large and isinstance(model, Streamable) and not completes(model) else None
        )


def _for_each_sample(coords: Tensor | None, samples: int) -> Tensor | None:
    return None if coords is None else coords.expand(samples, -1, -1)


def _join(parts: list[Tensor | None]) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None
