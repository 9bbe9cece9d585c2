"""Skeleton of the models on graphs, and the layers of GraphSAGE.

Axes: B batch, N points, C channels, W width, E edges.
"""

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from linearno.nn.config import GraphSource
from linearno.nn.graph import Edges, Graph, connect
from linearno.nn.padding import padding_of
from linearno.nn.point_mlp import Features, Mask, PointNorm
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.ops import Segments


def graph_needs(settings: Any) -> tuple[str, ...]:
    """What a model on a graph needs: edges, or positions to find them; a time if it takes one."""
    return ("time",) * settings.time + ("edges" if settings.graph == "data" else "positions",)


class GraphOperator(PointOperator):
    """head(blocks(lift([x, a]) + E(t))) with blocks that see the graph of the points.

    Each block maps features (B, N, W), a mask (B, N) of padded points or None, the scaled coordinates if the
    model `sees_coords`, and the `Graph`, to features.

    Args:
        graph: how edges are found in unscaled coordinates; "data": they come with the data.
        **parts: of a `PointOperator`.
    """

    sees_coords: ClassVar[bool] = False
    setting_instead: ClassVar[dict[str, str]] = {
        "edges": "without model.graph=data the model finds edges between near points"
    }

    def __init__(self, *, graph: GraphSource, **parts: Any):
        super().__init__(**parts)
        self.graph = graph

    @property
    def capturable(self) -> bool:
        """The number of edges of the data may differ between batches."""
        return self.graph != "data" and super().capturable

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Coords | None = None,
        edges: Edges | None = None,
        segments: Segments | None = None,
    ) -> Output:
        """Outputs at the points.

        Args:
            coords: scaled coordinates.
            inputs: input channels.
            time: of each sample, if the model takes one.
            positions: unscaled coordinates, in which edges are found; None: `coords`.
            edges: sources and targets as rows of the flattened batch, if the model does not find them.
            segments: offsets of packed meshes.
        """
        padding = padding_of(segments, coords)
        positions = coords if positions is None else positions
        graph = connect(self.graph, positions, edges, padding)
        more = self._block_arguments(graph, positions if padding is None else padding.pad(positions))
        own = coords if self.sees_coords else None
        return self.apply_blocks(coords, inputs, time=time, segments=segments, positions=own, more=more)

    def _block_arguments(self, graph: Graph, positions: Coords) -> tuple[Any, ...]:
        """What blocks get last: the graph, and what a subclass derives from the unscaled coordinates."""
        return (graph,)


class SageLayer(nn.Module):
    """W₁ mean over the edges j → i of hⱼ + b + W₂ hᵢ, then a norm over the points and a ReLU.

    The mean is taken of whichever has fewer channels, hⱼ or W₁ hⱼ: both orders give the same.

    Args:
        inputs: channels of h.
        outputs: channels of the result.
        normalise: whether a `PointNorm` follows.
        activate: whether a ReLU follows.
    """

    def __init__(self, inputs: int, outputs: int, *, normalise: bool = True, activate: bool = True):
        super().__init__()
        self.neighbours = nn.Linear(inputs, outputs)
        self.own = nn.Linear(inputs, outputs, bias=False)
        self.norm = PointNorm(outputs) if normalise else None
        self.activate = activate

    def forward(self, h: Features, mask: Mask | None, graph: Graph) -> Float[Tensor, "B N O"]:
        near = self.neighbours
        if near.in_features > near.out_features:
            mean = graph.mean_of(linear(h, near.weight)) + near.bias
        else:
            mean = near(graph.mean_of(h))
        out = mean + self.own(h)
        out = out if self.norm is None else self.norm(out, mask)
        return relu(out) if self.activate else out
