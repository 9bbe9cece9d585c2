"""A mesh of any size through a model, a chunk of points at a time, with the result of one call.

Slices need all points, so a model of L blocks reads them L + 1 times: in each pass one block answers from its
finished state, and what the next block's slices hold of the chunk is gathered; the last one ends in the head.
Between two passes features wait on a shelf, or are made again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.data.scaler import Scaler
from linearno.inference.streaming.cuda_graphs import places_of, replays_of
from linearno.inference.streaming.host_device_copy import Ferry
from linearno.inference.streaming.memory_plan import Plan
from linearno.inference.streaming.storage import InMemory, OnDisk, Rows
from linearno.nn.protocol import Streamable
from linearno.nn.transformer import Block
from linearno.ops import State, merge
from linearno.ops.layers import Residual

OnChunk = Callable[[int, int], None]  # points done and points to do, over all passes
Ending = Callable[[Tensor], tuple[Tensor, ...]]  # of a pass, from the features of a chunk


class Mesh(NamedTuple):
    """What a model is asked, by rows of points."""

    coords: Rows
    inputs: Rows | None
    positions: Rows | None
    time: Tensor | None


class Passes:
    """The passes of one question: where features wait, and how far they are."""

    def __init__(
        self,
        model: Streamable,
        plan: Plan,
        scaler: Scaler | None,
        *,
        passes: int,
        on_chunk: OnChunk | None = None,
    ):
        weight = next(model.parameters())
        self.model, self.plan, self.scaler, self.dtype = model, plan, scaler, weight.dtype
        self.blocks = [block for block in model.point_blocks if isinstance(block, Block)]
        self.ferry = Ferry(weight.device, plan.chunk)
        self.shelf = _shelf(plan, model.width, weight.device) if passes > 1 else None
        self.on_chunk, self.done, self.total = on_chunk, 0, passes * plan.points
        self.replays = replays_of(cast(nn.Module, model), plan.samples * plan.chunk * model.width)
        scales = None if scaler is None else (scaler, *places_of(scaler))
        self.kind = scales, plan.kept_type, torch.backends.cuda.matmul.allow_tf32

    def encode(self, mesh: Mesh, *, last: bool) -> list[State]:
        """The states of all blocks, one pass for each; after the `last` pass nobody needs the features."""
        states: list[State] = []
        for layer, block in enumerate(self.blocks):
            shelf = None if last and layer == len(self.blocks) - 1 else self.shelf
            whole: State | None = None
            for n, (h, *part) in self._pass(mesh, layer, states, partial(_gathered, block)):
                found = State(*part)
                whole = found if whole is None else merge(whole, found)
                if shelf is not None:
                    self.ferry.save(shelf, n, h)
                self._tick(n)
            assert whole is not None
            self.ferry.finish()
            states.append(block.attention.finalize(whole))
            if layer == 0:
                _require_finite(states[0])
        return states

    def answer(self, mesh: Mesh, states: Sequence[State], out: Rows) -> None:
        """One pass: from states and features to outputs in physical units."""

        def end(h: Tensor) -> tuple[Tensor]:
            fields = self.model.project_features(h).to(self.dtype)
            return (fields if self.scaler is None else self.scaler.outputs.decode(fields),)

        for n, (fields,) in self._pass(mesh, len(self.blocks), states, end):
            self.ferry.save(out, n, fields)
            self._tick(n)
        self.ferry.finish()

    def _pass(
        self, mesh: Mesh, layer: int, states: Sequence[State], end: Ending
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """What `end` makes of the features before block `layer`, by chunks; they come one block on from the
        shelf, or from the mesh on."""
        lifts = self.shelf is None or layer == 0
        first = 0 if lifts else layer - 1
        held = [part for state in states[first:layer] for part in state]
        if mesh.time is not None and lifts:
            held.append(mesh.time)

        def work(*given: Tensor) -> tuple[Tensor, ...]:
            rows, known = given[: -len(held) or None], iter(given[len(given) - len(held) :])
            of_blocks = [State(next(known), next(known), next(known)) for _ in range(first, layer)]
            h = self._lift(mesh, rows, next(known, None)) if lifts else rows[0].to(self.dtype)
            for block, state in zip(self.blocks[first:layer], of_blocks, strict=True):
                h = block(Residual(h), state)[0].total()
            return end(h)

        key = (*self.kind, layer, lifts, tuple(part is None for part in mesh))
        for n, rows in self._rows(mesh, lifts):
            if self.replays is None:
                yield n, work(*rows, *held)
            else:
                yield n, self.replays(key, work, *rows, *held)

    def _rows(self, mesh: Mesh, lifts: bool) -> Iterator[tuple[slice, list[Tensor]]]:
        """Chunks on the device: of the mesh, or of the features that wait."""
        if lifts or self.shelf is None:
            rows = [part for part in mesh[:3] if part is not None]
            return self.ferry.load(rows, self.plan.chunks, self.dtype)
        return self.ferry.load([self.shelf], self.plan.chunks)

    def _lift(self, mesh: Mesh, rows: Sequence[Tensor], time: Tensor | None) -> Tensor:
        left = iter(rows)
        coords, inputs, positions = (None if part is None else next(left) for part in mesh[:3])
        assert coords is not None
        if self.scaler is not None:
            coords, inputs = self.scaler.coords.encode(coords), self.scaler.encode_inputs(inputs)
        return self.model.lift_features(coords, inputs, time=time, positions=positions)

    def _tick(self, n: slice) -> None:
        self.done += n.stop - n.start
        if self.on_chunk is not None:
            self.on_chunk(self.done, self.total)


def _gathered(block: Block, h: Tensor) -> tuple[Tensor, ...]:
    return h, *block.partial_state(h)


def _shelf(plan: Plan, width: int, device: torch.device) -> Rows | None:
    """Where features wait between two passes."""
    shape = (plan.samples, plan.points, width)
    if plan.keep == "recompute":
        return None
    if plan.keep == "disk":
        return OnDisk(shape, plan.kept_type)
    where = device if plan.keep == "device" else torch.device("cpu")
    pinned = where.type == "cpu" and device.type == "cuda"
    return InMemory(torch.empty(shape, dtype=plan.kept_type, device=where, pin_memory=pinned))


def _require_finite(state: State) -> None:
    """One bad point spoils the slices of the first layer, and with them every answer."""
    if not all(part.isfinite().all() for part in state):
        raise UserError("coordinates or inputs hold NaN or infinite values; leave those points out")
