"""Benchmarks on body-fitted grids: positions `X`, `Y` and fields `Q` at the nodes of every sample.

Axes: S samples, I × J nodes, C channels of Q.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.data.array_set import StoredSet
from linearno.data.benchmark import Splits
from linearno.data.field_data import FieldData
from linearno.data.sample import FieldSpec

Nodes = Float[Tensor, "S I J 2"]
Values = Float[Tensor, "S I J"]


def read_nodes(stored: StoredSet, split: str, *, channel: int, stride: int) -> tuple[Nodes, Values]:
    """Positions of every `stride`-th node and one channel of Q there."""
    step = slice(None, None, stride)
    x, y = (stored.read(split, field, step, step) for field in "XY")
    values = stored.read(split, "Q", slice(channel, channel + 1), step, step)
    return torch.stack([x, y], dim=-1), values[:, 0]


def body_fitted_splits(
    stored: StoredSet, spec: FieldSpec, read: Callable[[StoredSet, str], tuple[Nodes, Values]]
) -> Splits:
    """Both splits with the nodes as coordinates (S, N, 2), no inputs and the values as targets (S, N, 1)."""

    def split(name: str) -> FieldData:
        nodes, values = read(stored, name)
        return FieldData(spec, nodes.flatten(1, 2), None, values.flatten(1)[..., None])

    return Splits(split("train"), split("test"), stored.source)
