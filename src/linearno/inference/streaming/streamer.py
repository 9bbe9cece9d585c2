"""A model on meshes of any size, in chunks of points. Axes: B samples, N points, C channels."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.core.errors import UserError
from linearno.data.scaler import Scaler
from linearno.inference.streaming.executor import Executor, MeshRows, OnChunk
from linearno.inference.streaming.memory_plan import Keep, Plan, plan
from linearno.inference.streaming.storage import Array, InMemory, as_rows
from linearno.nn.protocol import Streamable, needs_of, unsupported
from linearno.ops import State

PROBE_POINTS = {"cpu": 2**12, "cuda": 2**20}  # at most, to estimate the duration


@dataclass(frozen=True)
class Streamer:
    """`model` in chunks of points, within `memory`.

    Arrays are (N, ·) of one sample or (B, N, ·), tensors or NumPy arrays, memory-mapped or not. They stay
    where they are, and are copied to the model's device chunk by chunk.

    Args:
        model: to run, in evaluation mode.
        memory: limit on the model's device.
        keep: where features are kept between two passes; see `plan`.
        precision: of the computation.
        scaler: for arrays in physical units.
        chunk: points per chunk; None: as many as the memory allows.
        on_chunk: called after every chunk with points done and points to do, over all passes.
    """

    model: Streamable
    memory: int | str = "2GB"
    keep: Keep | Literal["auto"] = "auto"
    precision: Precision = "fp32"
    scaler: Scaler | None = None
    chunk: int | None = None
    on_chunk: OnChunk | None = None

    def plan(self, points: int, samples: int = 1) -> Plan:
        """What a call for a mesh of this size will do and need."""
        return plan(
            self.model,
            points,
            samples=samples,
            memory=self.memory,
            keep=self.keep,
            precision=self.precision,
            chunk=self.chunk,
        )

    def seconds(self, planned: Plan) -> float:
        """Estimated duration of a plan, from a small mesh that is streamed now."""
        weight = next(self.model.parameters())
        points = min(planned.points, planned.chunk, PROBE_POINTS[weight.device.type])
        mesh, quiet = self._random_mesh(points, planned.samples), replace(self, on_chunk=None, scaler=None)
        probe = replace(planned, points=points, chunk=points)
        out = InMemory(torch.empty(planned.samples, points, self.model.sizes["outputs"]))
        for _ in range(2):  # the first one warms up
            start = time.perf_counter()
            quiet._forward(mesh, probe, out)
            took = time.perf_counter() - start
        return took * planned.points / points

    def forward(
        self,
        coords: Array,
        inputs: Array | None = None,
        *,
        time: Tensor | None = None,
        positions: Array | None = None,
        out: Array | None = None,
    ) -> Tensor:
        """Outputs at all points, as one call of the model would give: (N, C) or (B, N, C) as the coordinates.

        Args:
            coords: points.
            inputs: input channels at the points, if the model has inputs.
            time: (B, 1), of a model that takes it.
            positions: unscaled coordinates, of a model that takes them.
            out: where to write the outputs.
        """
        mesh = self._mesh(coords, inputs, time, positions)
        planned = self.plan(mesh.coords.shape[1], mesh.coords.shape[0])
        answer, rows = self._out(coords, out)
        self._forward(mesh, planned, rows)
        return answer

    def encode(
        self,
        coords: Array,
        inputs: Array | None = None,
        *,
        time: Tensor | None = None,
        positions: Array | None = None,
    ) -> list[State]:
        """The states of all layers for this mesh, which is all that a query needs."""
        mesh = self._mesh(coords, inputs, time, positions)
        planned = self.plan(mesh.coords.shape[1], mesh.coords.shape[0])
        with self._executor(planned, planned.depth) as executor:
            return executor.encode(mesh, keep_features=False)

    def query(
        self,
        coords: Array,
        states: Sequence[State],
        inputs: Array | None = None,
        *,
        time: Tensor | None = None,
        positions: Array | None = None,
        out: Array | None = None,
    ) -> Tensor:
        """Outputs of an encoded mesh at any points, independent of each other."""
        mesh = self._mesh(coords, inputs, time, positions)
        planned = replace(self, keep="recompute").plan(mesh.coords.shape[1], mesh.coords.shape[0])
        answer, rows = self._out(coords, out)
        with self._executor(planned, 1) as executor:
            executor.project(mesh, states, rows)
        return answer

    @property
    def _io_dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype if self.scaler is None else self.scaler.coords.mean.dtype

    def _forward(self, mesh: MeshRows, planned: Plan, out: InMemory) -> None:
        with self._executor(planned, planned.passes) as executor:
            executor.project(mesh, executor.encode(mesh, keep_features=True), out)

    @contextmanager
    def _executor(self, planned: Plan, passes: int) -> Iterator[Executor]:
        """Without gradients, in `precision`, on the model's device."""
        device = next(self.model.parameters()).device
        set_matmul_precision(self.precision)
        with ExitStack() as scope:
            if self.model.training:
                scope.callback(self.model.train)
                self.model.eval()
            scope.enter_context(torch.no_grad())
            scope.enter_context(autocast(self.precision, device))
            if device.type == "cuda":
                scope.enter_context(torch.cuda.device(device))
            yield Executor(self.model, planned, self.scaler, passes=passes, on_chunk=self.on_chunk)

    def _mesh(
        self, coords: Array, inputs: Array | None, time: Tensor | None, positions: Array | None
    ) -> MeshRows:
        """The arrays as rows; an error if they do not fit each other or the model."""
        points = as_rows(coords, "coords")
        more = {"inputs": inputs, "positions": positions}
        parts = {name: None if array is None else as_rows(array, name) for name, array in more.items()}
        for name, rows in parts.items():
            if rows is not None and rows.shape[:2] != points.shape[:2]:
                sizes = ("×".join(map(str, found.shape[:2])) for found in (rows, points))
                raise UserError("{} are of {} points, coords of {}".format(name, *sizes))
        for name, rows in {"coords": points, "inputs": parts["inputs"]}.items():
            if (count := rows.shape[2] if rows else 0) != self.model.sizes[name]:
                raise UserError(f"this model takes {self.model.sizes[name]} {name} a point, got {count}")
        when = None if time is None else time.to(next(self.model.parameters()))
        return MeshRows(points, parts["inputs"], parts["positions"], when)

    def _out(self, coords: Array, out: Array | None) -> tuple[Tensor, InMemory]:
        shape = (*coords.shape[:-1], self.model.sizes["outputs"])
        if out is None:
            out = torch.empty(shape, dtype=self._io_dtype)
        if tuple(out.shape) != shape:
            raise UserError(f"out has shape {tuple(out.shape)}, the outputs have {shape}")
        rows = as_rows(out, "out")
        return rows.tensor if len(shape) == 3 else rows.tensor[0], rows

    def _random_mesh(self, points: int, samples: int) -> MeshRows:
        model, weight = self.model, next(self.model.parameters())

        def draw(channels: int) -> InMemory | None:
            return InMemory(torch.rand(samples, points, channels)) if channels else None

        needs = needs_of(cast(nn.Module, model)) or ()
        coords = draw(model.sizes["coords"])
        assert coords is not None
        positions = draw(model.sizes["coords"]) if "positions" in needs else None
        when = weight.new_zeros(samples, 1) if "time" in needs else None
        return MeshRows(coords, draw(model.sizes["inputs"]), positions, when)


def stream(model: nn.Module, coords: Array, inputs: Array | None = None, **options: Any) -> Tensor:
    """The outputs of `model` at any number of points, within a given memory.

    >>> u = stream(model, coords, a, memory="8GB")  # (N, X), (N, C) → (N, C), as model(coords, a)

    Args:
        model: to run.
        coords: points.
        inputs: input channels at the points, if the model has inputs.
        options: fields of a `Streamer` (memory, keep, precision, …) and arguments of its `forward` (time,
            positions, out).
    """
    if not isinstance(model, Streamable):
        raise unsupported(model, "streaming")
    arguments = {name: options.pop(name) for name in ("time", "positions", "out") if name in options}
    return Streamer(model, **options).forward(coords, inputs, **arguments)
