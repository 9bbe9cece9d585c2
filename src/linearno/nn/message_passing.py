"""Message passing with a state at every edge.

Axes: B batch, N points, K neighbours, X coordinates, W width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from linearno.nn.graph import Graph, Messages
from linearno.nn.point_mlp import ACTIVATIONS, Features, PointMlp
from linearno.nn.point_operator import Coords


class NormalisedMlp(nn.Module):
    """Linear maps with ReLUs between, then a layer norm over the channels.

    Args:
        widths: channels of the input, the hidden layers and the output.
        exact_input: the first map is exact under autocast, for coordinates.
    """

    def __init__(self, widths: tuple[int, ...], *, exact_input: bool = False):
        super().__init__()
        self.mlp = PointMlp(widths, exact_input=exact_input)
        self.norm = nn.LayerNorm(widths[-1])

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        return self.norm(self.mlp(x))


class EdgeMlp(NormalisedMlp):
    """A `NormalisedMlp` of [e, h of the source, h of the target] for each edge.

    The first map acts on the points before their features are gathered at the edges: this needs a third of
    the work of a map of the joined features, and gives the same.

    Args:
        width: W of edges and points.
        hidden_layers: hidden layers of width W.
    """

    def __init__(self, width: int, hidden_layers: int):
        super().__init__((3 * width, *[width] * (hidden_layers + 1)))

    def forward(self, e: Messages, h: Features, graph: Graph) -> Messages:  # type: ignore[override]
        first, *others = self.mlp.layers
        assert isinstance(first, nn.Linear)
        own, source, target = first.weight.chunk(3, dim=1)
        x = linear(e, own, first.bias) + graph.sources(linear(h, source)) + linear(h, target).unsqueeze(2)
        for layer in others:
            x = layer(ACTIVATIONS[self.mlp.activation](x))
        return self.norm(x)


class MessagePassing(nn.Module):
    """One step:  e ← e + edge([e, h_source, h_target]),  h ← h + node([Σ e over the edges to a point, h]).

    Args:
        width: W of edges and points.
        hidden_layers: of both networks, of width W.
    """

    def __init__(self, width: int, hidden_layers: int):
        super().__init__()
        self.edge = EdgeMlp(width, hidden_layers)
        self.node = NormalisedMlp((2 * width, *[width] * (hidden_layers + 1)))

    def forward(self, h: Features, e: Messages, graph: Graph) -> tuple[Features, Messages]:
        e = e + self.edge(e, h, graph)
        return h + self.node(torch.cat([graph.total(e), h], dim=-1)), e


def edge_features(coords: Coords, graph: Graph) -> Float[Tensor, "B N K X1"]:
    """x_source − x_target and its length for each edge, divided by the mean length in each sample."""
    difference = graph.differences(coords, coords)
    length = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    count = graph.exists.sum(dim=(1, 2)).clamp(min=1)[:, None, None, None]
    mean = length.sum(dim=(1, 2), keepdim=True) / count
    return torch.cat([difference, length], dim=-1) / torch.where(mean > 0, mean, 1)
