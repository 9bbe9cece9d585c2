"""What slices know of points, and how that of parts becomes that of all. Axes as in `verbs`."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "*batch N H D"]
Values = Float[Tensor, "*batch N H E"]
Slices = Float[Tensor, "*batch H M E"]
PerSlice = Float[Tensor, "*batch H M"]
Weight = Float[Tensor, "D M"]  # shared by all heads
Scale = Float[Tensor, "H"]  # 1/τ of each head
Bias = Float[Tensor, "M"]
Project = Float[Tensor, "E F"]

Score = Literal["linear", "softmax", "log_softmax"]  # what is done to a point's scores, over M, before ψ


class State(NamedTuple):
    """What M slices know of the points seen so far, with weights w = exp(score): Σw = sum·exp(max).

    `value` is the weighted mean Σ w v / Σ w; only `max + log(sum)` has a meaning, so gradients flow
    through `sum` and `max` counts as a constant.
    """

    max: PerSlice
    sum: PerSlice
    value: Slices


def merge(*states: State) -> State:
    """The state of all points together, from the states of any parts of them; exact at any magnitude."""
    return merge_stacked(*(torch.stack(parts) for parts in zip(*states, strict=True)))


def merge_stacked(maxima: Tensor, sums: Tensor, values: Tensor) -> State:
    """The state of K parts stacked: maxima and sums (K, …, H, M), values (K, …, H, M, E)."""
    maximum = maxima.amax(dim=0)
    finite_maximum = torch.where(
        maximum.isinf(), torch.zeros_like(maximum), maximum
    )  # all parts empty: no weight at all
    sums = sums * (maxima - finite_maximum).exp()
    weight_sum = sums.sum(dim=0)
    shares = sums / torch.where(weight_sum > 0, weight_sum, torch.ones_like(weight_sum))
    return State(maximum, weight_sum, (shares.unsqueeze(-1) * values).sum(dim=0))
