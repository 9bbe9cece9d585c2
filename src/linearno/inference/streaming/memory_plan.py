"""Plan streaming within a given memory: points per chunk, and where features are kept between passes."""

import tempfile
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from linearno.core.byte_sizes import format_bytes, free_disk, free_memory, parse_bytes
from linearno.core.device import Precision
from linearno.core.errors import UserError, did_you_mean
from linearno.metrics.cost import flops
from linearno.nn.protocol import Streamable

Keep = Literal["device", "host", "disk", "recompute"]
AUTO_CHOICES = {
    "cpu": ("host", "disk", "recompute"),
    "cuda": ("device", "host", "recompute"),
}  # in this order
MAX_CHUNK_ELEMENTS = {"cpu": 2**19, "cuda": 2**28}  # of its features: what fits a cache, or fills a GPU
MIN_EFFICIENT_CHUNK = 2**10  # points; with fewer, `auto` tries another place for features
MIN_CHUNK = 64  # points
FIXED_BYTES = {"cpu": 2**24, "cuda": 2**28}  # that do not grow with a chunk: work space of the ops
MAX_SHARE = 0.9  # of free disk or host memory that features may take
WHERE = {"device": "on the device", "host": "in host memory", "disk": "on disk"}


@dataclass(frozen=True)
class Plan:
    """What streaming will do and need.

    Args:
        points: of the mesh.
        samples: that are streamed together.
        depth: number of blocks.
        chunk: points per chunk.
        keep: where features are kept between two passes.
        kept_type: their type there.
        kept_bytes: their size there.
        bytes: memory of the model's device, without the model itself and its inputs and outputs.
        flops: of all passes.
    """

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
        kept = "recomputed in each pass"
        if self.keep != "recompute":
            kept = f"kept {WHERE[self.keep]}, {format_bytes(self.kept_bytes)}"
        return (
            f"{self.points:,} points, {self.chunk:,} at a time in {self.passes} passes; features {kept}"
            f"; about {format_bytes(self.bytes)} of memory, {self.flops / 1e12:.3g} TFLOP"
        )


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
    """The plan for a mesh; an error with the memory that it would need if it does not fit.

    Args:
        model: to stream.
        points: of the mesh.
        samples: that are streamed together.
        memory: limit on the model's device, in addition to what of it is free.
        keep: where features are kept between two passes:
            device: in its memory, the fastest;
            host: in host memory, copied while the device computes; on a CPU the same as device;
            disk: in a temporary file;
            recompute: nowhere; each pass computes them from the mesh and the states found so far;
            auto: the first of these that fits, on CUDA without the disk.
        precision: of the computation; in bf16 features are kept in bf16.
        chunk: points per chunk; None: as many as fit.
    """
    model.require_queryable()
    if points < 1:
        raise UserError("there are no points to stream")
    if chunk is not None and chunk < 1:
        raise UserError(f"chunk={chunk}: expected one point or more at a time")
    weight = next(model.parameters())
    kept_type = torch.bfloat16 if precision == "bf16" else weight.dtype
    blank = Plan(points, samples, len(model.point_blocks), 0, "recompute", kept_type, 0, 0, 0)
    limit, least = min(parse_bytes(memory), free_memory(weight.device)), min(points, MIN_CHUNK)
    plans = [_fit(model, blank, choice, limit, chunk) for choice in _choices(keep, weight.device.type)]
    for enough in (MIN_EFFICIENT_CHUNK, least):
        for found in plans:
            if found.chunk >= min(points, chunk or enough, enough):
                return found
    if len(plans) == 1 and plans[0].kept_bytes > (available := _available(plans[0].keep, weight.device)):
        raise UserError(
            f"keep={keep!r} needs {format_bytes(plans[0].kept_bytes)} {WHERE[plans[0].keep]}, where there are"
            f" {format_bytes(available)}; give keep='recompute'"
        )
    need = min(_bytes(model, replace(found, chunk=least)) for found in plans)
    raise UserError(
        f"memory={format_bytes(limit)} is too little: {least} points at a time"
        f"{'' if keep == 'auto' else f' with keep={keep!r}'} need about {format_bytes(need)}; give more"
        f"{'' if keep in ('auto', 'recompute') else ', or keep=recompute'}"
    )


def _choices(keep: str, device: str) -> list[Keep]:
    if keep != "auto" and keep not in get_args(Keep):
        raise UserError(f"keep={keep!r} is not known; {did_you_mean(keep, ['auto', *get_args(Keep)])}")
    if keep == "auto":
        return [choice for choice in get_args(Keep) if choice in AUTO_CHOICES[device]]
    return [cast(Keep, "host" if (keep, device) == ("device", "cpu") else keep)]


def _fit(model: Streamable, blank: Plan, keep: Keep, limit: int, chunk: int | None) -> Plan:
    """The plan with the largest useful chunk that fits; with chunk=0 if none does."""
    device, width = next(model.parameters()).device, blank.samples * model.width
    kept = 0 if keep == "recompute" else blank.points * width * blank.kept_type.itemsize
    found = replace(blank, keep=keep, kept_bytes=kept)
    most = (limit - _bytes(model, found)) // _bytes_per_point(model, found)
    most = min(chunk or max(MIN_CHUNK, MAX_CHUNK_ELEMENTS[device.type] // width), blank.points, most)
    if most < 1 or kept > _available(keep, device):
        return found
    even = ceil(blank.points / ceil(blank.points / most)) if chunk is None else most
    found = replace(found, chunk=even)
    return replace(found, bytes=_bytes(model, found), flops=_flops(model, found))


def _available(keep: Keep, device: torch.device) -> float:
    """Bytes for features outside the memory of the device."""
    if keep == "disk":
        return MAX_SHARE * free_disk(Path(tempfile.gettempdir()))
    return MAX_SHARE * free_memory(torch.device("cpu")) if keep == "host" and device.type == "cuda" else inf


def _bytes(model: Streamable, plan: Plan) -> int:
    """Peak memory of the device."""
    device = next(model.parameters()).device.type
    kept_there = plan.keep == "device" or (plan.keep, device) == ("host", "cpu")
    kept = plan.kept_bytes if kept_there else 0
    return FIXED_BYTES[device] + kept + plan.chunk * _bytes_per_point(model, plan)


def _bytes_per_point(model: Streamable, plan: Plan) -> int:
    """Memory of a point while a block works on its chunk.

    A few times its features and twice the hidden layer, or that of the lift, of twice the width. On CUDA two
    more chunks are being copied, in and out.
    """
    weight = next(model.parameters())
    around = model.features + model.outputs
    size = weight.element_size() * ((8 + 2 * max(1, model.mlp_ratio)) * model.width + 2 * around)
    if weight.is_cuda:
        copied = 4 * plan.kept_type.itemsize * model.width if plan.keep in ("host", "disk") else 0
        size += 4 * weight.element_size() * around + copied
    return plan.samples * size


def _flops(model: Streamable, plan: Plan) -> int:
    """Of all passes: kept features go through the input projection of every block twice; without them, each
    pass begins at the mesh and goes one block further."""
    shape = model.cost_shape(plan.points)
    if plan.keep == "recompute":
        return plan.samples * plan.passes * (flops(replace(shape, depth=0)) + flops(shape)) // 2
    return plan.samples * (flops(shape) + 2 * plan.points * plan.depth * model.width**2)
