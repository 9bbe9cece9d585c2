"""How a mesh is streamed in a given memory: how many points at once, and where features wait meanwhile."""

import tempfile
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Literal, get_args

import torch

from linearno.core.byte_sizes import format_bytes, free_disk, free_memory, parse_bytes
from linearno.core.device import Precision
from linearno.core.errors import UserError, did_you_mean
from linearno.metrics.cost import flops
from linearno.nn.protocol import Streamable

Keep = Literal["device", "host", "disk", "recompute"]
CHOICES = {"cpu": ("host", "disk", "recompute"), "cuda": ("device", "host", "recompute")}  # in this order
LARGEST = {"cpu": 2**19, "cuda": 2**28}  # numbers of a chunk's features: what fits a cache, or fills a GPU
WORKABLE = 2**10  # points at once, below which another way to keep features is looked for
SMALLEST = 64
FIXED = {"cpu": 2**24, "cuda": 2**28}  # bytes that do not grow with a chunk: the blocks of the ops


@dataclass(frozen=True)
class Plan:
    """What streaming will do and need. `bytes` is memory of the model's device, beside the model itself and
    the arrays that come and go; `kept_bytes` is what features take between two passes, wherever they are."""

    points: int
    samples: int
    depth: int
    chunk: int
    keep: Keep
    kept_type: torch.dtype
    kept_bytes: int
    bytes: int
    flops: int

    @property
    def passes(self) -> int:
        return self.depth + 1

    @property
    def chunks(self) -> list[slice]:
        starts = range(0, self.points, self.chunk)
        return [slice(start, min(start + self.chunk, self.points)) for start in starts]

    def __str__(self) -> str:
        kept = "made again in each pass" if self.keep == "recompute" else f"kept {WHERE[self.keep]}"
        size = "" if self.keep == "recompute" else f", {format_bytes(self.kept_bytes)}"
        return (
            f"{self.points:,} points, {self.chunk:,} at a time in {self.passes} passes; features {kept}{size}"
            f"; about {format_bytes(self.bytes)} of memory, {self.flops / 1e12:.3g} TFLOP"
        )


WHERE = {"device": "on the device", "host": "in host memory", "disk": "on disk"}


def plan(
    model: Streamable,
    points: int,
    *,
    samples: int = 1,
    memory: int | str = "2GB",
    keep: Keep | Literal["auto"] = "auto",
    precision: Precision = "fp32",
    chunk: int | None = None,
) -> Plan:
    """How `model` takes a mesh of so many points within `memory`, or an error that says what it would need.

    `memory` is that of the model's device, or what of it is free. Features between two passes are kept
    device     in its memory: the fastest, where it has the room
    host       in host memory, carried to and fro while the device computes; on a CPU the same as device
    disk       in a temporary file
    recompute  nowhere: each pass makes them again, from the mesh and the states found so far
    auto       the first of these that fits, on CUDA without the disk
    """
    model.require_queryable()
    if points < 1:
        raise UserError("there are no points to stream")
    if chunk is not None and chunk < 1:
        raise UserError(f"chunk={chunk}: expected one point or more at a time")
    weight = next(model.parameters())
    kept_type = torch.bfloat16 if precision == "bf16" else weight.dtype
    blank = Plan(points, samples, len(model.point_blocks), 0, "recompute", kept_type, 0, 0, 0)
    room, least = min(parse_bytes(memory), free_memory(weight.device)), min(points, SMALLEST)
    tried = [_fitted(model, blank, way, room, chunk) for way in _ways(keep, weight.device.type)]
    for enough in (WORKABLE, least):
        for found in tried:
            if found.chunk >= min(points, chunk or enough, enough):
                return found
    if len(tried) == 1 and tried[0].kept_bytes > _room_elsewhere(tried[0].keep, weight.device):
        raise UserError(
            f"keep={keep!r} needs {format_bytes(tried[0].kept_bytes)} {WHERE[tried[0].keep]}, where there are"
            f" {format_bytes(_room_elsewhere(tried[0].keep, weight.device))}; give keep='recompute'"
        )
    need = min(_bytes(model, replace(found, chunk=least)) for found in tried)
    raise UserError(
        f"memory={format_bytes(room)} is too little: {least} points at a time"
        f"{'' if keep == 'auto' else f' with keep={keep!r}'} need about {format_bytes(need)}; give more"
        f"{'' if keep in ('auto', 'recompute') else ', or keep=recompute'}"
    )


def _ways(keep: str, kind: str) -> list[Keep]:
    if keep != "auto" and keep not in get_args(Keep):
        raise UserError(f"keep={keep!r} is not known; {did_you_mean(keep, ['auto', *get_args(Keep)])}")
    choices = CHOICES[kind] if keep == "auto" else ("host" if (keep, kind) == ("device", "cpu") else keep,)
    return [way for way in get_args(Keep) if way in choices]


def _fitted(model: Streamable, blank: Plan, keep: Keep, room: int, chunk: int | None) -> Plan:
    """The plan with the largest useful chunk that fits; one without any if none does."""
    device, width = next(model.parameters()).device, blank.samples * model.width
    kept = 0 if keep == "recompute" else blank.points * width * blank.kept_type.itemsize
    found = replace(blank, keep=keep, kept_bytes=kept)
    most = (room - _bytes(model, found)) // _bytes_a_point(model, found)
    most = min(chunk or max(SMALLEST, LARGEST[device.type] // width), blank.points, most)
    if most < 1 or kept > _room_elsewhere(keep, device):
        return found
    even = ceil(blank.points / ceil(blank.points / most)) if chunk is None else most
    found = replace(found, chunk=even)
    return replace(found, bytes=_bytes(model, found), flops=_flops(model, found))


def _room_elsewhere(keep: Keep, device: torch.device) -> float:
    """What there is for features that do not count as memory of the device."""
    if keep == "disk":
        return 0.9 * free_disk(Path(tempfile.gettempdir()))
    return 0.9 * free_memory(torch.device("cpu")) if keep == "host" and device.type == "cuda" else inf


def _bytes(model: Streamable, plan: Plan) -> int:
    """Memory of the device that a plan takes at its highest."""
    kind = next(model.parameters()).device.type
    near = plan.keep == "device" or (plan.keep, kind) == ("host", "cpu")
    return FIXED[kind] + (plan.kept_bytes if near else 0) + plan.chunk * _bytes_a_point(model, plan)


def _bytes_a_point(model: Streamable, plan: Plan) -> int:
    """Of a chunk, while a block works on it: its features a few times over, the hidden layer twice; the lift
    has a hidden layer of twice the width. On CUDA two chunks more are on their way, in and out."""
    weight = next(model.parameters())
    around = model.features + model.outputs
    size = weight.element_size() * ((8 + 2 * max(1, model.mlp_ratio)) * model.width + 2 * around)
    if weight.is_cuda:
        far = 4 * plan.kept_type.itemsize * model.width if plan.keep in ("host", "disk") else 0
        size += 4 * weight.element_size() * around + far
    return plan.samples * size


def _flops(model: Streamable, plan: Plan) -> int:
    """Of all passes: with kept features the stem of every block is taken twice, without them each pass
    begins at the mesh."""
    shape = model.cost_shape(plan.points)
    if plan.keep == "recompute":
        first, last = flops(replace(shape, depth=0)), flops(shape)
        once = plan.passes * (first + last) // 2  # each pass goes one block further
    else:
        once = flops(shape) + 2 * plan.points * plan.depth * model.width**2
    return plan.samples * once
