"""Run a model over a mesh of any size in chunks of points, with the result of one call.

Slices need all points, so a model of L blocks takes L + 1 passes over them: each pass applies one block with
its final state, and gathers the state of the next block; the last one ends in the head. Between two passes
features are buffered, or recomputed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.data.scaler import Scaler
from linearno.inference.streaming.cuda_graphs import addresses_of, graph_cache_of
from linearno.inference.streaming.host_device_copy import ChunkCopier
from linearno.inference.streaming.memory_plan import Plan
from linearno.inference.streaming.storage import InMemory, OnDisk, Rows
from linearno.nn.protocol import Streamable
from linearno.nn.transformer import Block
from linearno.ops import State, merge
from linearno.ops.layers import Residual

OnChunk = Callable[[int, int], None]  # points done and points to do, over all passes
Finish = Callable[[Tensor], tuple[Tensor, ...]]  # the end of a pass, from the features of a chunk


class MeshRows(NamedTuple):
    """The arguments of a model as rows of points; one time for each sample."""

    coords: Rows
    inputs: Rows | None
    positions: Rows | None
    time: Tensor | None


class Executor:
    """The passes of one call.

    Args:
        model: to run.
        plan: sizes of chunks, and where features are kept between two passes.
        scaler: between physical units and the numbers of the model; None: no scaling.
        passes: number of passes.
        on_chunk: called after every chunk.
    """

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
        self.model, self.plan, self.scaler = model, plan, scaler
        self.dtype = weight.dtype
        self.io_dtype = weight.dtype if scaler is None else scaler.coords.mean.dtype
        self.blocks = [block for block in model.point_blocks if isinstance(block, Block)]
        self.copier = ChunkCopier(weight.device, plan.chunk)
        self.features = _feature_buffer(plan, model.width, weight.device) if passes > 1 else None
        self.on_chunk, self.done, self.total = on_chunk, 0, passes * plan.points
        self.graphs = graph_cache_of(cast(nn.Module, model), plan.samples * plan.chunk * model.width)
        scales = None if scaler is None else (scaler, *addresses_of(scaler))
        self.key = scales, plan.kept_type, torch.backends.cuda.matmul.allow_tf32

    def encode(self, mesh: MeshRows, *, keep_features: bool) -> list[State]:
        """The states of all blocks, in one pass for each; `keep_features` after the last pass."""
        states: list[State] = []
        for layer, block in enumerate(self.blocks):
            keep = keep_features or layer < len(self.blocks) - 1
            whole: State | None = None
            for n, (h, *part) in self._pass(mesh, layer, states, partial(_gather, block)):
                whole = State(*part) if whole is None else merge(whole, State(*part))
                if keep and self.features is not None:
                    self.copier.save(self.features, n, h)
                self._report(n)
            assert whole is not None
            self.copier.finish()
            states.append(block.attention.finalize(whole))
            if layer == 0:
                _require_finite(states[0])
        return states

    def project(self, mesh: MeshRows, states: Sequence[State], out: Rows) -> None:
        """One pass from states and features to outputs in physical units."""

        def finish(h: Tensor) -> tuple[Tensor]:
            fields = self.model.project_features(h).to(self.io_dtype)
            return (fields if self.scaler is None else self.scaler.outputs.decode(fields),)

        for n, (fields,) in self._pass(mesh, len(self.blocks), states, finish):
            self.copier.save(out, n, fields)
            self._report(n)
        self.copier.finish()

    def _pass(
        self, mesh: MeshRows, layer: int, states: Sequence[State], finish: Finish
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """`finish` of the features before block `layer`, by chunks.

        Features are computed from those of the block before, which are buffered, or from the mesh.
        """
        from_mesh = self.features is None or layer == 0
        first = 0 if from_mesh else layer - 1
        constants = [part for state in states[first:layer] for part in state]
        if mesh.time is not None and from_mesh:
            constants.append(mesh.time)

        def work(*arguments: Tensor) -> tuple[Tensor, ...]:
            rows = arguments[: len(arguments) - len(constants)]
            rest = iter(arguments[len(rows) :])
            of_blocks = [State(next(rest), next(rest), next(rest)) for _ in range(first, layer)]
            h = self._lift(mesh, rows, next(rest, None)) if from_mesh else rows[0].to(self.dtype)
            for block, state in zip(self.blocks[first:layer], of_blocks, strict=True):
                h = block(Residual(h), state)[0].total()
            return finish(h)

        key = (*self.key, layer, from_mesh, tuple(part is None for part in mesh))
        for n, rows in self._chunks(mesh, from_mesh):
            if self.graphs is None:
                yield n, work(*rows, *constants)
            else:
                yield n, self.graphs(key, work, *rows, *constants)

    def _chunks(self, mesh: MeshRows, from_mesh: bool) -> Iterator[tuple[slice, list[Tensor]]]:
        """Chunks of the mesh, or of the buffered features, on the device."""
        if from_mesh or self.features is None:
            rows = [part for part in mesh[:3] if part is not None]
            return self.copier.load(rows, self.plan.chunks, self.io_dtype)
        return self.copier.load([self.features], self.plan.chunks)

    def _lift(self, mesh: MeshRows, rows: Sequence[Tensor], time: Tensor | None) -> Tensor:
        coords, *others = rows
        inputs = None if mesh.inputs is None else others[0]
        positions = None if mesh.positions is None else others[-1].to(self.dtype)
        if self.scaler is not None:
            coords, inputs = self.scaler.coords.encode(coords), self.scaler.encode_inputs(inputs)
        if inputs is not None:
            inputs = inputs.to(self.dtype)
        return self.model.lift_features(coords.to(self.dtype), inputs, time=time, positions=positions)

    def _report(self, n: slice) -> None:
        self.done += n.stop - n.start
        if self.on_chunk is not None:
            self.on_chunk(self.done, self.total)


def _gather(block: Block, h: Tensor) -> tuple[Tensor, ...]:
    return h, *block.partial_state(h)


def _feature_buffer(plan: Plan, width: int, device: torch.device) -> Rows | None:
    shape = (plan.samples, plan.points, width)
    if plan.keep == "recompute":
        return None
    if plan.keep == "disk":
        return OnDisk(shape, plan.kept_type)
    where = device if plan.keep == "device" else torch.device("cpu")
    pinned = where.type == "cpu" and device.type == "cuda"
    return InMemory(torch.empty(shape, dtype=plan.kept_type, device=where, pin_memory=pinned))


def _require_finite(state: State) -> None:
    """One NaN in coordinates or inputs reaches the slices of the first layer, and so all outputs."""
    if not all(part.isfinite().all() for part in state):
        raise UserError("coordinates or inputs hold NaN or infinite values; leave those points out")
