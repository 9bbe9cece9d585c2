"""Random subsets of the points of a mesh for training. Axes: N points of the mesh, K drawn points."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from linearno.data.field_data import FieldData
from linearno.data.sample import Batch, is_edges


def draw_points(
    points: int, count: int, generator: torch.Generator, first: Bool[Tensor, "N"] | None = None
) -> Int64[Tensor, "K"]:
    """Indices of at most `count` random points, in ascending order.

    Args:
        points: N, number of points.
        count: number of points to draw.
        generator: random generator.
        first: mask of the points that are drawn before any other.
    """
    if count >= points:
        return torch.arange(points)
    priority = torch.rand(points, generator=generator, dtype=torch.float64)
    if first is not None:
        priority[first] -= 1
    last = priority.kthvalue(count).values  # several times as fast as topk
    return (priority <= last).nonzero().flatten()[:count]


def points_and_surface(data: FieldData, sample: int) -> tuple[int, Tensor | None]:
    """Number of points of a sample, and the mask of its surface points."""
    if data.offsets is not None:
        start, stop = data.offsets[sample : sample + 2].tolist()
        return stop - start, None if data.surface is None else data.surface[start:stop]
    surface = data.surface
    if surface is not None and surface.dim() > 1:
        surface = surface[sample]
    return data.coords.shape[-2], surface


def select_points(sample: Batch, points: Int64[Tensor, "K"]) -> Batch:
    """A batch of one sample (1, N, ·) at some of its points, without edges."""
    count = sample.coords.shape[1]

    def take(part: Tensor | None) -> Tensor | None:
        return None if part is None else part[:, points]

    aux = {
        name: part[:, points] if part.shape[:2] == (1, count) and part.dim() > 2 else part
        for name, part in sample.aux.items()
        if not is_edges(part)
    }
    return sample._replace(
        coords=sample.coords[:, points],
        inputs=take(sample.inputs),
        targets=sample.targets[:, points],
        surface=take(sample.surface),
        segments=None if sample.segments is None else torch.tensor([0, len(points)]),
        aux=aux,
    )


def separate(batch: Batch) -> list[Batch]:
    """The samples of a batch as batches of one sample, without edges."""
    if batch.segments is not None:
        whole, starts = batch._replace(segments=None), batch.segments.tolist()
        parts = []
        for index, (start, stop) in enumerate(pairwise(starts)):
            points = torch.arange(start, stop, device=batch.coords.device)
            part = select_points(whole, points)
            aux = {
                name: each if each.dim() > 2 else each[index : index + 1] for name, each in part.aux.items()
            }
            parts.append(part._replace(segments=torch.tensor([0, stop - start]), aux=aux))
        return parts
    fields = {name: part for name, part in batch._asdict().items() if isinstance(part, Tensor)}
    return [
        batch._replace(
            **{name: part[index : index + 1] for name, part in fields.items()},
            aux={name: each[index : index + 1] for name, each in batch.aux.items() if not is_edges(each)},
        )
        for index in range(batch.size)
    ]
