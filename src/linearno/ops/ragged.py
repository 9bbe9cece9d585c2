"""Meshes of different sizes one after another in one tensor. Axes: S segments, T = Σ N_i points of all.

Segment i owns the points offsets[i]:offsets[i+1]. The S + 1 offsets live on the host: they decide shapes and
launches, and to read them from a device would be to wait for it.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from linearno.core.errors import UserError

Segments = Int64[Tensor, "S1"]  # the S + 1 offsets, on the host


def offsets_of(sizes: Sequence[int]) -> Segments:
    """The offsets of meshes with so many points each."""
    return torch.tensor([0, *accumulate(sizes)])


def sizes_of(segments: Segments, points: int) -> list[int]:
    """The points of each segment, N_i; an error where these are not all of `points` or one has none."""
    if segments.device.type != "cpu":
        raise UserError(f"offsets of segments belong on the host, not on {segments.device}; give .cpu()")
    offsets = segments.tolist()
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != points:
        ends = f"from {offsets[0]} to {offsets[-1]}" if offsets else "not at all"
        raise UserError(f"offsets of segments run from 0 to the {points} points there are; these run {ends}")
    sizes = [stop - start for start, stop in pairwise(offsets)]
    if min(sizes) < 1:
        empty = next(i for i, size in enumerate(sizes) if size < 1)
        raise UserError(f"segment {empty} has {sizes[empty]} points; every mesh needs one or more")
    return sizes


def split_segments(x: Shaped[Tensor, "1 T ..."], segments: Segments) -> tuple[Tensor, ...]:
    """The points of each segment by themselves, (1, N_i, …): views."""
    return x.split(sizes_of(segments, x.shape[1]), dim=1)


def expand_per_segment(x: Shaped[Tensor, "S 1 W"], segments: Segments) -> Shaped[Tensor, "1 T W"]:
    """What each segment has, at every point of it."""
    sizes = sizes_of(segments, int(segments[-1]))
    if len(sizes) != len(x):
        raise UserError(f"there are {len(x)} values for {len(sizes)} segments; give one for each")
    return torch.cat([part.expand(size, -1) for part, size in zip(x, sizes, strict=True)])[None]
