"""Packed meshes as one padded batch.

Axes: S meshes, N_i points of each, T = Σ N_i, L = max N_i, C channels.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from linearno.core.errors import UserError
from linearno.ops import Segments
from linearno.ops.ragged import offset_list, sizes_of


class Padding:
    """Converts points packed one mesh after another, (1, T, C), to a padded batch (S, L, C) and back.

    A padded entry repeats the last point of its mesh, so that every value is finite; `mask` excludes it from
    sums over the points. `rows` are the entries (T,) of the points in the flattened padded batch. The cost is
    that of S meshes of the largest size.

    Args:
        segments: offsets (S + 1,) of the meshes.
        points: T, the number of packed points.
        device: where the points are.
    """

    mask: Bool[Tensor, "S L"]

    def __init__(self, segments: Segments, points: int, device: torch.device):
        sizes = sizes_of(segments, points)
        longest = max(sizes)
        entries, ends = torch.arange(longest), torch.tensor(sizes)[:, None]
        starts = torch.tensor(offset_list(segments)[:-1])[:, None]
        source = starts + torch.minimum(entries, ends - 1)
        mask = entries < ends
        target = torch.cat([torch.arange(i * longest, i * longest + size) for i, size in enumerate(sizes)])
        self._source: Int64[Tensor, "S L"] = source.to(device, non_blocking=True)
        self.rows: Int64[Tensor, T] = target.to(device, non_blocking=True)
        self.mask = mask.to(device, non_blocking=True)

    def pad(self, x: Float[Tensor, "1 T C"]) -> Float[Tensor, "S L C"]:
        return x[0][self._source]

    def unpad(self, x: Float[Tensor, "S L C"]) -> Float[Tensor, "1 T C"]:
        return x.flatten(0, 1)[self.rows][None]


def padding_of(segments: Segments | None, coords: Float[Tensor, "B N X"]) -> Padding | None:
    """The padding of packed points; None for a batch of meshes of one size."""
    if segments is None:
        return None
    if len(coords) != 1:
        raise UserError(f"packed meshes are one batch, coords (1, T, X); got {tuple(coords.shape)}")
    return Padding(segments, coords.shape[1], coords.device)
