"""Predictions, encoded states and meshes behind the routes.

Axes: S samples, N points, Q query points, X coordinates, C channels.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from torch import Tensor

from linearno.data.array_io import InputArrays, arrange_inputs
from linearno.inference import Bundle
from linearno.inference.bundle import EncodedSamples
from linearno.nn.protocol import capabilities, completes, model_name
from linearno.service import array_bodies
from linearno.service.bodies import BodyReader
from linearno.service.config import ServiceConfig
from linearno.service.device_queue import Answer, DeviceQueue, Job, Prediction
from linearno.service.errors import RequestError
from linearno.service.formats import MEDIA_TYPES
from linearno.service.meshes import MeshService, UploadedMesh
from linearno.service.metrics import Metrics, resident_memory
from linearno.service.state_cache import StateCache, bytes_of

SOURCE = "the request"
MAX_EDGE_INDEX = 2**24  # above which float32 does not hold every whole number


class Reply(NamedTuple):
    """Body of a reply, seconds of the model call, warnings."""

    body: bytes
    media_type: str
    seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """Encoded samples on a device, the mesh that they came from, and whether replies have a sample axis."""

    encoded: EncodedSamples
    queue: DeviceQueue
    mesh: UploadedMesh | None
    has_samples: bool

    @property
    def bytes(self) -> int:
        mesh = 0 if self.mesh is None else self.mesh.file.bytes + bytes_of(self.mesh.case)
        return mesh + bytes_of(self.encoded.states)

    def drop(self) -> None:
        if self.mesh is not None:
            self.mesh.delete()


class Surrogate:
    """A run on one or several devices, with queues, cached states and mesh readers.

    Args:
        bundles: the surrogate on each device.
        config: limits.
    """

    def __init__(self, bundles: Sequence[Bundle], config: ServiceConfig):
        self.config, self.metrics, self.bodies = config, Metrics(), BodyReader(config)
        self._queues = [DeviceQueue(bundle, config, self.metrics) for bundle in bundles]
        self._states: StateCache[State] = StateCache(config.cache, State.drop)
        self._bundle = bundles[0]
        self._meshes = MeshService(self._bundle, config)

    @property
    def description(self) -> dict[str, Any]:
        """What the run takes and predicts."""
        spec, bundle = self._bundle.call_spec, self._bundle
        return {
            "model": model_name(bundle.model),
            "task": bundle.task.name,
            "coords": spec.coords,
            "inputs": spec.inputs,
            "outputs": bundle.spec.outputs,
            "aux": dict(spec.aux),
            "units": bundle.spec.units,
            "grid": spec.grid,
            "needs_coords": self._needs_coords,
            "meshes": self._meshes.unavailable is None,
            "queries": completes(bundle.model) or "query" in capabilities(bundle.model),
            "devices": [queue.name for queue in self._queues],
        }

    async def predict(self, body: bytes, kind: str, steps: int | None, given: Mapping[str, float]) -> Reply:
        """Predict for the arrays or the mesh in a body; the reply has the same format."""
        if kind in ("npz", "json"):
            if given:
                raise RequestError(422, "given: for meshes alone; send numbers of a case as input fields")
            return await self._predict_arrays(body, kind, steps)
        if steps is not None:
            raise RequestError(422, "steps: for arrays alone; leave it out for a mesh")
        mesh = await self._meshes.call(partial(self._meshes.read, body, kind, given))
        try:
            sample, began = mesh.case.sample(), time.perf_counter()
            inputs = None if sample.inputs is None else sample.inputs[None]
            answer = await self._wait(self._queue(), Prediction(inputs, sample.coords[None]))
            seconds = time.perf_counter() - began
            values = answer.value[0].numpy()
            content = await self._meshes.call(partial(self._meshes.write, mesh, values, seconds))
        finally:
            mesh.delete()
        return Reply(content, MEDIA_TYPES[kind], seconds, answer.warnings)

    async def encode(self, key: str, body: bytes, kind: str, given: Mapping[str, float]) -> dict[str, Any]:
        """Encode samples or a mesh, unless they are cached already."""
        state, warnings = self._states.get(key), tuple[str, ...]()
        if state is None:
            state, warnings = await self._encode(body, kind, given)
            if not self._states.put(key, state, state.bytes):
                raise RequestError(
                    413, f"the state has {state.bytes} bytes; the cache has {self.config.cache}"
                )
        return {"state": key, "samples": state.encoded.samples, "bytes": state.bytes, "warnings": warnings}

    async def query(self, key: str, body: bytes, kind: str) -> Reply:
        """Outputs at query points from a cached state."""
        if (state := self._states.get(key)) is None:
            raise RequestError(
                404, "no such state: it was never encoded or has been dropped; encode it again"
            )
        arrays = await self._arrays(body, kind)
        if "points" not in arrays:
            raise RequestError(400, f"no array 'points'; got {', '.join(sorted(arrays)) or 'none'}")
        points, inputs = arrays["points"].astype(np.float32), arrays.get("inputs")
        self._require_points(state.encoded.samples * (points.shape[-2] if points.ndim > 1 else 0))
        if state.mesh is not None:
            points, inputs = await self._meshes.call(partial(self._meshes.locate, state.mesh, points))
        if inputs is not None and inputs.ndim == 2:
            inputs = inputs[None]
        began, encoded = time.perf_counter(), state.encoded
        single = None if inputs is None else inputs.astype(np.float32)
        answer = await self._wait(state.queue, Job(lambda bundle: encoded.query(points, single)))
        outputs = answer.value if state.has_samples else answer.value[0]
        fields = {name: outputs[..., i] for i, name in enumerate(self._bundle.spec.outputs)}
        return self._reply(fields, kind, time.perf_counter() - began, answer.warnings)

    def metrics_text(self) -> str:
        """All counters and current values."""
        gauges = {f'linearno_queue_length{{device="{queue.name}"}}': len(queue) for queue in self._queues}
        return self.metrics.text(
            gauges
            | {
                "linearno_cached_states": len(self._states),
                "linearno_cached_bytes": self._states.bytes,
                "linearno_body_bytes": self.bodies.size,
                "process_resident_memory_bytes": resident_memory(),
            }
        )

    def close(self) -> None:
        """Finish what is queued, stop threads and readers, delete meshes."""
        for queue in self._queues:
            queue.close()
        self._meshes.close()
        self._states.clear()

    @property
    def _needs_coords(self) -> bool:
        return completes(self._bundle.model) or self._bundle.coords is None

    def _queue(self) -> DeviceQueue:
        """The queue with the fewest jobs."""
        return min(self._queues, key=len)

    async def _wait(self, queue: DeviceQueue, job: Job | Prediction) -> Answer:
        """The answer of a job, within the time limit; a job that has not begun by then is dropped."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(queue.submit(job)), self.config.seconds)
        except TimeoutError:
            raise RequestError(504, f"not predicted within {self.config.seconds:g} s; send less") from None

    async def _arrays(self, body: bytes, kind: str) -> dict[str, ndarray]:
        """Arrays of a body, read in a thread."""
        if kind == "json":
            return await asyncio.to_thread(array_bodies.read_json_arrays, body)
        return await asyncio.to_thread(array_bodies.read_npz, body, 4 * self.config.body)

    async def _inputs(self, body: bytes, kind: str) -> tuple[InputArrays, dict[str, ndarray]]:
        """Inputs and auxiliary fields of a body."""
        arrays = await self._arrays(body, kind)
        spec = self._bundle.call_spec
        if completes(self._bundle.model):
            spec = spec.model_copy(update={"grid": None})
        known = (*spec.inputs, "coords", *spec.aux)
        if unknown := sorted(arrays.keys() - set(known)):
            raise RequestError(400, f"array {unknown[0]!r} is not used; expected {', '.join(known)}")
        plain = {name: np.array(values, dtype=np.float32, order="C") for name, values in arrays.items()}
        own = {name: plain[name] for name in plain if name not in spec.aux}
        found = arrange_inputs(SOURCE, own, list(arrays), spec, need_coords=self._needs_coords)
        part = found.inputs if found.inputs is not None else found.coords
        samples = len(part) if part is not None and part.dim() == 3 else 1
        self._require_points(0 if part is None else samples * part.shape[-2])
        return found, {name: arrays[name] for name in spec.aux if name in arrays}

    def _require_points(self, points: int) -> None:
        if points > self.config.points:
            raise RequestError(413, f"{points} points; at most {self.config.points} are accepted")

    async def _predict_arrays(self, body: bytes, kind: str, steps: int | None) -> Reply:
        found, aux = await self._inputs(body, kind)
        began = time.perf_counter()
        answer = await self._wait(self._queue(), Prediction(found.inputs, found.coords, steps, aux))
        seconds, outputs = time.perf_counter() - began, answer.value
        fields = self._fields(outputs, found.leading, steps)
        return self._reply(fields, kind, seconds, answer.warnings)

    def _fields(self, outputs: Tensor, leading: tuple[int, ...], steps: int | None) -> dict[str, ndarray]:
        """Outputs (S, N, C) as an array for each channel, in the shape of the inputs."""
        bundle = self._bundle
        names = bundle.spec.outputs
        if steps is not None:
            names = tuple(f"step{i + 1}" for i in range(outputs.shape[-1]))
        grid = bundle.spec.grid or outputs.shape[1:2]
        shape = (*leading[:-1], *grid) if completes(bundle.model) else leading
        return {name: outputs[..., i].reshape(shape).numpy() for i, name in enumerate(names)}

    async def _encode(
        self, body: bytes, kind: str, given: Mapping[str, float]
    ) -> tuple[State, tuple[str, ...]]:
        queue, mesh = self._queue(), None
        if kind in ("npz", "json"):
            if given:
                raise RequestError(422, "given: for meshes alone; send numbers of a case as input fields")
            found, _ = await self._inputs(body, kind)
            coords = self._bundle.coords if found.coords is None else found.coords
            inputs, has_samples = found.inputs, len(found.leading) > 1
        else:
            mesh = await self._meshes.call(partial(self._meshes.read, body, kind, given))
            sample, has_samples = mesh.case.sample(), False
            coords, inputs = sample.coords[None], None if sample.inputs is None else sample.inputs[None]
        memory = self.config.memory
        try:
            answer = await self._wait(queue, Job(lambda bundle: bundle.encode(coords, inputs, memory=memory)))
        except BaseException:
            if mesh is not None:
                mesh.delete()
            raise
        return State(answer.value, queue, mesh, has_samples), answer.warnings

    def _reply(
        self, fields: Mapping[str, ndarray], kind: str, seconds: float, warnings: tuple[str, ...]
    ) -> Reply:
        write = array_bodies.write_npz if kind == "npz" else array_bodies.write_json_arrays
        return Reply(write(fields), MEDIA_TYPES[kind], seconds, warnings)
