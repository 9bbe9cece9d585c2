"""The state of slices, and the exact merge of the states of parts. Axes as in `gather_scatter`."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "*batch N H D"]
Values = Float[Tensor, "*batch N H E"]
Slices = Float[Tensor, "*batch H M E"]
PerSlice = Float[Tensor, "*batch H M"]
Weight = Float[Tensor, "D M"]  # shared by all heads
Scale = Float[Tensor, "H"]  # 1/τ, τ the temperature of a head
Bias = Float[Tensor, "M"]
Project = Float[Tensor, "E F"]

Score = Literal["linear", "softmax", "log_softmax"]  # map of a point's scores over M, before ψ


class State(NamedTuple):
    """Sums over points gathered into M slices, with weights w = exp(score).

    Only `max + log(sum)` has a meaning, so gradients flow through `sum` and `max` counts as a constant.

    Args:
        max: largest score of a slice.
        sum: Σ w exp(−max).
        value: weighted mean Σ w v / Σ w.
    """

    max: PerSlice
    sum: PerSlice
    value: Slices


def merge(*states: State) -> State:
    """Merge the states of disjoint sets of points into the state of their union; exact at any magnitude."""
    return merge_stacked(*(torch.stack(parts) for parts in zip(*states, strict=True)))


def merge_stacked(maxima: Tensor, sums: Tensor, values: Tensor) -> State:
    """`merge` of K stacked states: maxima and sums (K, …, H, M), values (K, …, H, M, E)."""
    maximum = maxima.amax(dim=0)
    finite_maximum = torch.where(
        maximum.isinf(), torch.zeros_like(maximum), maximum
    )  # −∞: every part is empty
    sums = sums * (maxima - finite_maximum).exp()
    weight_sum = sums.sum(dim=0)
    shares = sums / torch.where(weight_sum > 0, weight_sum, torch.ones_like(weight_sum))
    return State(maximum, weight_sum, (shares.unsqueeze(-1) * values).sum(dim=0))
