"""A model that takes meshes of any size. Axes: B samples, N points, X coordinates, C channels."""

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
from linearno.inference.streaming.executor import Mesh, OnChunk, Passes
from linearno.inference.streaming.memory_plan import Keep, Plan, plan
from linearno.inference.streaming.storage import Array, InMemory, as_rows
from linearno.nn.protocol import Streamable, needs_of, unsupported
from linearno.ops import State

PROBE = {"cpu": 2**12, "cuda": 2**20}  # points that a time is taken of


@dataclass(frozen=True)
class Streamer:
    """`model` in chunks of points, within `memory`; see `plan` for that and for `keep`.

    Arrays are (N, ·) of one sample or (B, N, ·), tensors or numpy's, memory-mapped or not. They stay in host
    memory and are carried to the model's device chunk by chunk. With a `scaler` they are in physical units.
    In bf16 features are also kept in it. `on_chunk` hears of every chunk: points done, and points to do in
    all passes.
    """

    model: Streamable
    memory: int | str = "2GB"
    keep: Keep | Literal["auto"] = "auto"
    precision: Precision = "fp32"
    scaler: Scaler | None = None
    chunk: int | None = None  # points at once; None: as the memory allows
    on_chunk: OnChunk | None = None

    def plan(self, points: int, samples: int = 1) -> Plan:
        """What a call for such a mesh will do and need."""
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
        """About how long a plan takes, from a small mesh that is streamed the same way here and now."""
        weight = next(self.model.parameters())
        points = min(planned.points, planned.chunk, PROBE[weight.device.type])
        small, quiet = self._any_mesh(points, planned.samples), replace(self, on_chunk=None, scaler=None)
        probe = replace(planned, points=points, chunk=points)
        out = InMemory(torch.empty(planned.samples, points, self.model.sizes["outputs"]))
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            quiet._forward(small, probe, out)
            took = time.perf_counter() - began
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
        """The outputs at all points: what one call of the model gives, for any number of them.

        They are (N, C) or (B, N, C) as the coordinates are, and lie in `out` where it is given.
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
        """What each layer's slices hold for this mesh: all that a query needs."""
        mesh = self._mesh(coords, inputs, time, positions)
        planned = self.plan(mesh.coords.shape[1], mesh.coords.shape[0])
        with self._working(planned, planned.depth) as passes:
            return passes.encode(mesh, last=True)

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
        """The field of an encoded mesh at any points: each on its own."""
        mesh = self._mesh(coords, inputs, time, positions)
        planned = replace(self, keep="recompute").plan(mesh.coords.shape[1], mesh.coords.shape[0])
        answer, rows = self._out(coords, out)
        with self._working(planned, 1) as passes:
            passes.answer(mesh, states, rows)
        return answer

    def _forward(self, mesh: Mesh, planned: Plan, out: InMemory) -> None:
        with self._working(planned, planned.passes) as passes:
            passes.answer(mesh, passes.encode(mesh, last=False), out)

    @contextmanager
    def _working(self, planned: Plan, passes: int) -> Iterator[Passes]:
        """Without gradients, in the precision asked for, on the model's device."""
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
            yield Passes(self.model, planned, self.scaler, passes=passes, on_chunk=self.on_chunk)

    def _mesh(
        self, coords: Array, inputs: Array | None, time: Tensor | None, positions: Array | None
    ) -> Mesh:
        """The question as rows, if its parts fit each other and the model."""
        place = as_rows(coords, "coords")
        more = {"inputs": inputs, "positions": positions}
        parts = {name: None if array is None else as_rows(array, name) for name, array in more.items()}
        for name, rows in parts.items():
            if rows is not None and rows.shape[:2] != place.shape[:2]:
                sizes = ("×".join(map(str, found.shape[:2])) for found in (rows, place))
                raise UserError("{} are of {} points, coords of {}".format(name, *sizes))
        for name, rows in {"coords": place, "inputs": parts["inputs"]}.items():
            if (count := rows.shape[2] if rows else 0) != self.model.sizes[name]:
                raise UserError(f"this model takes {self.model.sizes[name]} {name} a point, got {count}")
        when = None if time is None else time.to(next(self.model.parameters()))
        return Mesh(place, parts["inputs"], parts["positions"], when)

    def _out(self, coords: Array, out: Array | None) -> tuple[Tensor, InMemory]:
        shape = (*coords.shape[:-1], self.model.sizes["outputs"])
        if out is None:
            out = torch.empty(shape, dtype=next(self.model.parameters()).dtype)
        if tuple(out.shape) != shape:
            raise UserError(f"out has shape {tuple(out.shape)}, the outputs have {shape}")
        rows = as_rows(out, "out")
        return rows.tensor if len(shape) == 3 else rows.tensor[0], rows

    def _any_mesh(self, points: int, samples: int) -> Mesh:
        """Points to take the time of."""
        model, weight = self.model, next(self.model.parameters())

        def draw(channels: int) -> InMemory | None:
            return InMemory(torch.rand(samples, points, channels)) if channels else None

        needs = needs_of(cast(nn.Module, model)) or ()
        coords = draw(model.sizes["coords"])
        assert coords is not None
        positions = draw(model.sizes["coords"]) if "positions" in needs else None
        when = weight.new_zeros(samples, 1) if "time" in needs else None
        return Mesh(coords, draw(model.sizes["inputs"]), positions, when)


def stream(model: nn.Module, coords: Array, inputs: Array | None = None, **asked: Any) -> Tensor:
    """The outputs of `model` at any number of points, within a given memory.

    >>> u = stream(model, coords, a, memory="8GB")  # (N, X), (N, C) → (N, C), as model(coords, a)

    `asked` are settings of a `Streamer` (memory, keep, precision, …) and arguments of its `forward` (time,
    positions, out).
    """
    if not isinstance(model, Streamable):
        raise unsupported(model, "streaming")
    here = {name: asked.pop(name) for name in ("time", "positions", "out") if name in asked}
    return Streamer(model, **asked).forward(coords, inputs, **here)
