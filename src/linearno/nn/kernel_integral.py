"""Kernel integral operators on graphs: (K h)(x) = mean over the neighbours y of x of κ(y, x) h(y).

Axes: B samples, S geometries, M source points, N target points, K neighbours, X coordinates, C channels,
W width, R kernel width.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from linearno.nn.embeddings import CoordinateWaves
from linearno.nn.graph import Graph
from linearno.nn.point_mlp import ACTIVATIONS, Features, PointMlp
from linearno.nn.point_operator import Coords

Transform = Literal["linear", "nonlinear"]
Reduction = Literal["mean", "sum"]


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


class ChannelKernel(nn.Module):
    """Mean or sum over the edges j → i of κ(e(xⱼ), e(yᵢ)) ⊙ fⱼ; κ has one value for each channel of f.

    κ is a network with GELUs of an embedding e of the source xⱼ and the target yᵢ, and in the nonlinear form
    of fⱼ too. Its first map acts on points before they are gathered at the edges, in the precision of its
    weights under autocast too. A target without edges gets 0. Samples on one geometry (S = 1) share κ, unless
    it depends on f.

    Args:
        channels: C of f and of the result.
        embedding: e.
        hidden: channels of the hidden layers of κ.
        transform: "linear", or "nonlinear" if κ depends on f.
        reduction: "mean" or "sum".
    """

    def __init__(
        self,
        channels: int,
        embedding: CoordinateWaves,
        hidden: tuple[int, ...],
        *,
        transform: Transform = "linear",
        reduction: Reduction = "mean",
    ):
        super().__init__()
        self.embedding = embedding
        self.nonlinear, self.reduction = transform == "nonlinear", reduction
        features = 2 * embedding.features + (channels if self.nonlinear else 0)
        self.kernel = PointMlp((features, *hidden, channels), activation="gelu")

    def forward(
        self,
        f: Float[Tensor, "B M C"],
        sources: Float[Tensor, "S M X"],
        targets: Float[Tensor, "S N X"],
        graph: Graph,
    ) -> Float[Tensor, "B N C"]:
        edges = graph.in_each(f)
        first, *others = self.kernel.layers
        assert isinstance(first, nn.Linear)
        waves = self.embedding.features
        of_source, of_target, of_f = first.weight.tensor_split([waves, 2 * waves], dim=1)
        with torch.autocast(f.device.type, enabled=False):
            f = f.to(first.weight.dtype)
            source = linear(self.embedding(sources).to(f.dtype), of_source)
            target = linear(self.embedding(targets).to(f.dtype), of_target, first.bias)
            if self.nonlinear:
                source = source + linear(f, of_f)
        z = (edges if self.nonlinear else graph).sources(source) + target.unsqueeze(2)
        for layer in others:
            z = layer(gelu(z))
        messages = z * edges.sources(f)
        return edges.mean(messages) if self.reduction == "mean" else edges.total(messages)


def end_points(coords: Coords, graph: Graph) -> Float[Tensor, "B N K X2"]:
    """Coordinates of the source and of the target of each edge."""
    sources = graph.sources(coords)
    return torch.cat([sources, coords.unsqueeze(2).expand_as(sources)], dim=-1)
