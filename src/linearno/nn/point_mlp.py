"""Maps of each point, and statistics over the points of a sample.

Axes: B batch, N points, C channels.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from linearno.nn.latent_attention import ExactLinear
from linearno.nn.spectral import full_precision

Features = Float[Tensor, "B N C"]
Mask = Bool[Tensor, "B N"]  # False: a padded entry, excluded from sums over the points
Activation = Literal["relu", "gelu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu}


class PointNorm(nn.Module):
    """γ (x − μ) / √(σ² + ε) + β with mean μ and (biased) variance σ² over the points of each sample.

    Batch normalisation with the statistics of a batch of one sample, in training and evaluation alike.
    Computed in float32 (or float64) under autocast too.

    Args:
        width: channels C.
    """

    def __init__(self, width: int):
        super().__init__()
        self.eps = 1e-5
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        h = full_precision(x)
        if mask is None:
            variance, mean = torch.var_mean(h, dim=1, correction=0, keepdim=True)
        else:
            share = (mask.to(h.dtype) / mask.sum(dim=1, keepdim=True)).unsqueeze(-1)
            mean = (h * share).sum(dim=1, keepdim=True)
            variance = ((h - mean).square() * share).sum(dim=1, keepdim=True)
        return ((h - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)


class PointMlp(nn.Module):
    """Linear maps of each point with activations between:  x ← σ(norm(W x + b)), and W x + b at last.

    Args:
        widths: channels of the input, the hidden layers and the output.
        activation: σ.
        normalise: whether hidden layers have a `PointNorm`.
        exact_input: the first map is exact under autocast, for coordinates.
        exact_output: the last map is exact under autocast, for predictions.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        activation: Activation = "relu",
        normalise: bool = False,
        exact_input: bool = False,
        exact_output: bool = False,
    ):
        super().__init__()
        last = len(widths) - 2
        self.layers = nn.ModuleList(
            (ExactLinear if (exact_input and i == 0) or (exact_output and i == last) else nn.Linear)(*pair)
            for i, pair in enumerate(pairwise(widths))
        )
        self.norms = nn.ModuleList(PointNorm(width) for width in widths[1:-1] if normalise)
        self.activation = activation

    def forward(self, x: Float[Tensor, "*rows I"], mask: Mask | None = None) -> Float[Tensor, "*rows O"]:
        activate = ACTIVATIONS[self.activation]
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number < len(self.layers) - 1:
                x = activate(self.norms[number](x, mask) if self.norms else x)
        return x
