"""Ragged batches: meshes of different sizes packed into one tensor. Axes: S segments, T = Σ N_i points.

Segment i contains the points offsets[i]:offsets[i+1]. The S + 1 offsets stay on the host: shapes and launches
depend on them, and reading them from a device would synchronise. Under `torch.compile(fullgraph=True)` they
are a tuple of integers, since a compiled graph cannot read numbers out of a tensor.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from linearno.core.errors import UserError

Segments = Int64[Tensor, "S1"] | tuple[int, ...]  # the S + 1 offsets, on the host


def offsets_of(sizes: Sequence[int]) -> Int64[Tensor, "S1"]:
    """Offsets of meshes of the given numbers of points."""
    return torch.tensor([0, *accumulate(sizes)])


def offset_list(segments: Segments) -> list[int]:
    """The S + 1 offsets as integers."""
    return segments.tolist() if isinstance(segments, Tensor) else list(segments)


def sizes_of(segments: Segments, points: int) -> list[int]:
    """The number of points N_i of each segment.

    Raises:
        UserError: a segment is empty, or the segments do not cover exactly `points` points.
    """
    if isinstance(segments, Tensor) and segments.device.type != "cpu":
        raise UserError(f"expected segment offsets on the CPU, got {segments.device}; pass segments.cpu()")
    offsets = offset_list(segments)
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != points:
        ends = f"{offsets[0]} to {offsets[-1]}" if offsets else "none"
        raise UserError(f"expected segment offsets from 0 to {points}, the number of points; got {ends}")
    sizes = [stop - start for start, stop in pairwise(offsets)]
    if min(sizes) < 1:
        empty = next(i for i, size in enumerate(sizes) if size < 1)
        raise UserError(f"segment {empty} has {sizes[empty]} points; every mesh needs at least one")
    return sizes


def split_segments(x: Shaped[Tensor, "1 T ..."], segments: Segments) -> tuple[Tensor, ...]:
    """Views (1, N_i, …) of the points of each segment."""
    return x.split(sizes_of(segments, x.shape[1]), dim=1)


def expand_per_segment(x: Shaped[Tensor, "S 1 W"], segments: Segments) -> Shaped[Tensor, "1 T W"]:
    """Repeat the row of each segment at all of its points."""
    sizes = sizes_of(segments, int(segments[-1]))
    if len(sizes) != len(x):
        raise UserError(f"expected one row for each of {len(sizes)} segments, got {len(x)}")
    return torch.cat([part.expand(size, -1) for part, size in zip(x, sizes, strict=True)])[None]
