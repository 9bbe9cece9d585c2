"""Graphs as tables of neighbours, and sums of messages along their edges.

Axes: B samples, M source points, N target points, K neighbours of a target, C channels, E edges.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import embedding_bag

from linearno.core.errors import UserError
from linearno.nn.config import GraphSource, NeighbourGraph
from linearno.nn.padding import Padding
from linearno.ops.neighbours import Mask, Points, Queries, find_neighbours

Edges = Int64[Tensor, "2 E"]  # sources and targets, rows of the flattened batch
Features = Float[Tensor, "B M C"]
Messages = Float[Tensor, "B N K C"]


class Graph(NamedTuple):
    """Edges into each target point, as a table of K source points. All samples of a batch are one graph.

    A table has the same shape for every mesh of N points, so that a step with it can be captured, compiled
    and exported; sums run over one axis, in the same order at every call.

    Args:
        rows: source of each edge, as a row of the flattened sources (B · M); 0 where there is no edge.
        exists: whether there is such an edge.
    """

    rows: Int64[Tensor, "B N K"]
    exists: Bool[Tensor, "B N K"]

    def in_each(self, x: Features) -> "Graph":
        """The graph for the samples of x; that of one geometry is the same in all of them."""
        if self.rows.shape[0] == x.shape[0]:
            return self
        starts = torch.arange(x.shape[0], device=x.device) * x.shape[1]
        return Graph(self.rows + starts[:, None, None], self.exists.expand(x.shape[0], -1, -1))

    def sources(self, x: Features) -> Messages:
        """Features of the source of every edge."""
        return x.flatten(0, 1)[self.rows]

    def differences(self, sources: Features, targets: Float[Tensor, "B N C"]) -> Messages:
        """x_source − x_target of every edge; zero where there is none."""
        found = self.sources(sources) - targets.unsqueeze(2)
        return found.masked_fill(~self.exists.unsqueeze(-1), 0)

    def total(self, messages: Messages) -> Float[Tensor, "B N C"]:
        """Sum of the messages to each target."""
        return messages.masked_fill(~self.exists.unsqueeze(-1), 0).sum(dim=2)

    def mean(self, messages: Messages) -> Float[Tensor, "B N C"]:
        """Mean of the messages to each target; zero for a target without edges."""
        return (messages * self.weights(messages).unsqueeze(-1)).sum(dim=2)

    def mean_of(self, x: Features) -> Float[Tensor, "B N C"]:
        """`mean(sources(x))`, without a tensor of the size of the messages."""
        if torch.compiler.is_exporting():  # ONNX runs a loop over the targets otherwise
            return self.mean(self.sources(x))
        rows, weights = self.rows.flatten(0, 1), self.weights(x).flatten(0, 1)
        found = embedding_bag(rows, x.flatten(0, 1), mode="sum", per_sample_weights=weights)
        return found.unflatten(0, self.rows.shape[:2])

    def weights(self, like: Tensor) -> Float[Tensor, "B N K"]:
        """1 / (number of edges of the target) for each edge, 0 where there is none."""
        return self.exists.to(like.dtype) / self.exists.sum(dim=-1, keepdim=True).clamp(min=1)


def nearest_graph(
    points: Points, queries: Queries, settings: NeighbourGraph, mask: Mask | None = None, cache: bool = True
) -> Graph:
    """Edges from `points` to each query point, as `find_neighbours` finds them."""
    samples, count = points.shape[:2]
    rows, exists = find_neighbours(
        points,
        queries,
        count=settings.neighbours,
        radius=settings.radius,
        mask=mask,
        cache=cache,
    )
    starts = torch.arange(samples, device=rows.device) * count
    return Graph(rows + starts[:, None, None], exists)


def graph_of_edges(edges: Edges, samples: int, points: int) -> Graph:
    """The table of given edges between the rows of a batch (samples, points); K is their largest number.

    Args:
        edges: sources and targets; both directions where messages go both ways.
        samples: B.
        points: M = N.
    """
    rows = samples * points
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= rows):
        raise UserError(f"edges name point {int(edges.max())} of a batch of {rows}; count from 0")
    degrees = torch.bincount(edges[1], minlength=rows)
    width = max(1, int(degrees.max()))
    table = edges.new_zeros(rows, width)
    table[edges[1], edge_slots(edges[1], degrees)] = edges[0]
    exists = torch.arange(width, device=edges.device) < degrees[:, None]
    return Graph(table.unflatten(0, (samples, points)), exists.unflatten(0, (samples, points)))


def edge_slots(targets: Int64[Tensor, "E"], degrees: Int64[Tensor, "R"]) -> Int64[Tensor, "E"]:
    """The column of each edge in the table: its number among the edges of its target, in the given order."""
    order = targets.argsort(stable=True)
    first = degrees.cumsum(0) - degrees
    slots = torch.empty_like(targets)
    slots[order] = torch.arange(len(targets), device=targets.device) - first[targets[order]]
    return slots


def connect(
    source: GraphSource,
    positions: Float[Tensor, "B N X"],
    edges: Edges | None = None,
    padding: Padding | None = None,
) -> Graph:
    """The graph of a batch: of the nearest points, or of the `edges` of the data.

    Args:
        source: how edges are found; "data": `edges` are given.
        positions: unscaled coordinates; (1, T, X) if meshes are packed.
        edges: pairs of rows of the flattened batch.
        padding: of packed meshes; the graph is that of the padded batch.
    """
    if source != "data" and edges is not None:
        raise UserError('this model finds its edges itself: leave edges out, or build it with graph="data"')
    if source != "data":
        if padding is None:
            return nearest_graph(positions, positions, source)
        positions = padding.pad(positions)
        rows, exists = nearest_graph(positions, positions, source, padding.mask)
        return Graph(rows, exists & padding.mask.unsqueeze(-1))
    if edges is None:
        raise UserError("this model takes edges (2, E): give edges=…, or build it with a graph of neighbours")
    if padding is not None:
        return graph_of_edges(padding.rows[edges], *padding.mask.shape)
    return graph_of_edges(edges, positions.shape[0], positions.shape[1])
