"""Kernel integral operators on graphs: (K h)(x) = mean over the neighbours y of x of κ(y, x) h(y).

Axes: B samples, M source points, N target points, K neighbours, X coordinates, W width, R kernel width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from linearno.nn.graph import Graph
from linearno.nn.point_mlp import ACTIVATIONS, Features, PointMlp
from linearno.nn.point_operator import Coords


class MatrixKernel(nn.Module):
    """Mean over the edges j → i of κ(sᵢⱼ)ᵀ hⱼ, plus W hᵢ + b; κ is a W × W matrix for edge features s.

    κ is a network with two hidden layers, linear in the last one: κ = Σ over r of zᵣ(s) Aᵣ + A₀. So the mean
    is that of the products zᵣ hⱼ, (R, W) for each target, times the matrices Aᵣ: the matrices of the edges
    are never formed, and their work and memory, W² · R and W² for each edge, are those of each point.

    Args:
        width: W, channels in and out.
        edge_features: channels of s.
        kernel_width: R, channels of the second hidden layer of κ; the first has half as many.
        activate: whether a GELU follows.
    """

    def __init__(self, width: int, edge_features: int, kernel_width: int, *, activate: bool = True):
        super().__init__()
        self.kernel = PointMlp(
            (edge_features, kernel_width // 2, kernel_width, width**2), activation="relu", exact_input=True
        )
        self.own = nn.Linear(width, width)
        self.activate = activate

    def forward(self, h: Features, features: Float[Tensor, "B N K F"], graph: Graph) -> Features:
        *hidden, last = self.kernel.layers
        assert isinstance(last, nn.Linear)
        z = features
        for layer in hidden:
            z = ACTIVATIONS[self.kernel.activation](layer(z))
        z = z * graph.weights(z).unsqueeze(-1)
        near = graph.sources(h)
        products = (z.mT @ near.to(z.dtype)).flatten(-2)  # B N RW
        matrices = last.weight.T.unflatten(-1, (h.shape[-1], -1)).flatten(0, 1)  # RW W
        constant = last.bias.unflatten(0, (h.shape[-1], -1))
        out = products @ matrices + graph.mean_of(h) @ constant + self.own(h)
        return gelu(out) if self.activate else out


def end_points(coords: Coords, graph: Graph) -> Float[Tensor, "B N K X2"]:
    """Coordinates of the source and of the target of each edge."""
    sources = graph.sources(coords)
    return torch.cat([sources, coords.unsqueeze(2).expand_as(sources)], dim=-1)
