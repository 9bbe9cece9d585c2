"""Sums along the edges of a graph."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.nn.config import NeighbourGraph
from linearno.nn.graph import connect, graph_of_edges, nearest_graph
from linearno.nn.graph_operator import SageLayer
from linearno.nn.kernel_integral import MatrixKernel
from linearno.nn.message_passing import EdgeMlp, edge_features
from linearno.nn.padding import Padding
from linearno.ops.ragged import offsets_of

SAMPLES, POINTS, CHANNELS = 2, 9, 4


@pytest.fixture
def edges():
    """Random edges of two samples in one batch; point 5 of the first has none, and one edge comes twice."""
    torch.manual_seed(0)
    pairs = torch.randint(POINTS, (2, 40)) + POINTS * torch.randint(SAMPLES, (40,))
    pairs = torch.cat([pairs, pairs[:, :1]], dim=1)
    return pairs[:, pairs[1] != 5]


@pytest.fixture
def features():
    torch.manual_seed(1)
    return torch.randn(SAMPLES, POINTS, CHANNELS, dtype=torch.float64, requires_grad=True)


def summed(edges, messages):
    """Sums at the targets, edge by edge."""
    out = messages.new_zeros(SAMPLES * POINTS, CHANNELS).index_add(0, edges[1], messages)
    return out.unflatten(0, (SAMPLES, POINTS))


def check_equal(found, expected, features):
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(found)
    slopes = [
        torch.autograd.grad(out, features, cotangent, retain_graph=True)[0] for out in (found, expected)
    ]
    torch.testing.assert_close(*slopes)


def test_sums_and_means_are_those_of_the_edge_list(edges, features):
    graph = graph_of_edges(edges, SAMPLES, POINTS)
    messages = features.flatten(0, 1)[edges[0]]
    degrees = edges[1].bincount(minlength=SAMPLES * POINTS).view(SAMPLES, POINTS, 1)
    assert degrees[0, 5] == 0
    total = summed(edges, messages)
    check_equal(graph.total(graph.sources(features)), total, features)
    check_equal(graph.mean(graph.sources(features)), total / degrees.clamp(min=1), features)
    check_equal(graph.mean_of(features), total / degrees.clamp(min=1), features)


def test_differences_are_source_minus_target(edges, features):
    graph = graph_of_edges(edges, SAMPLES, POINTS)
    rows = features.flatten(0, 1)
    found = graph.differences(features, features)
    check_equal(found.sum(dim=2), summed(edges, rows[edges[0]] - rows[edges[1]]), features)


def test_a_found_graph_is_that_of_its_edge_list():
    """Padding included: points packed one mesh after another are neighbours within their mesh only."""
    sizes, settings = [5, 1, 8], NeighbourGraph(radius=0.6, neighbours=4)
    positions = torch.rand(1, sum(sizes), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.randn(1, sum(sizes), CHANNELS, dtype=torch.float64)
    padding = Padding(offsets_of(sizes), sum(sizes), x.device)
    pairs, start = [], 0
    for points in positions[0].split(sizes):
        for target, distances in enumerate((points[:, None] - points).norm(dim=-1)):
            near = [j for j in distances.argsort().tolist() if distances[j] <= 0.6][:4]
            pairs += [(start + source, start + target) for source in near]
        start += len(points)
    listed = torch.tensor(pairs).T
    given = connect("data", positions, listed, padding)
    found = connect(settings, positions, None, padding)
    means = [padding.unpad(graph.mean_of(padding.pad(x))) for graph in (found, given)]
    torch.testing.assert_close(*means)
    torch.testing.assert_close(means[0], connect("data", positions, listed).mean_of(x))


@pytest.mark.parametrize("widths", [(4, 7), (7, 4)])
def test_a_sage_layer_is_its_equation_in_both_orders(widths, edges):
    """Also at a point without edges, where the mean is zero and the bias stays."""
    layer = SageLayer(*widths, normalise=False, activate=False).double()
    h = torch.randn(SAMPLES, POINTS, widths[0], dtype=torch.float64)
    adjacency = torch.zeros(SAMPLES * POINTS, SAMPLES * POINTS, dtype=torch.float64)
    adjacency.index_put_(
        (edges[1], edges[0]), torch.ones(len(edges[0]), dtype=torch.float64), accumulate=True
    )
    mean = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1) @ h.flatten(0, 1)
    expected = mean @ layer.neighbours.weight.T + layer.neighbours.bias + h.flatten(0, 1) @ layer.own.weight.T
    found = layer(h, None, graph_of_edges(edges, SAMPLES, POINTS))
    torch.testing.assert_close(found.flatten(0, 1), expected)


@pytest.mark.parametrize("width", [1, 4])
def test_a_matrix_kernel_is_the_mean_of_the_products_with_the_matrix_of_each_edge(width, edges):
    torch.manual_seed(2)
    layer = MatrixKernel(width, 3, kernel_width=6, activate=False).double()
    graph = graph_of_edges(edges, SAMPLES, POINTS)
    h = torch.randn(SAMPLES, POINTS, width, dtype=torch.float64, requires_grad=True)
    s = torch.randn(*graph.rows.shape, 3, dtype=torch.float64)
    matrices = layer.kernel(s).unflatten(-1, (width, width))
    messages = torch.einsum("bnki,bnkio->bnko", graph.sources(h), matrices)
    check_equal(layer(h, s, graph), graph.mean(messages) + layer.own(h), h)
    weights = [*layer.parameters()]
    found, expected = layer(h, s, graph), graph.mean(messages) + layer.own(h)
    cotangent = torch.randn_like(found)
    slopes = [torch.autograd.grad(out, weights, cotangent) for out in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_edges_that_do_not_fit_are_refused(edges):
    positions = torch.rand(SAMPLES, POINTS, 2)
    with pytest.raises(UserError, match="takes edges"):
        connect("data", positions)
    with pytest.raises(UserError, match='build it with graph="data"'):
        connect(NeighbourGraph(), positions, edges)
    with pytest.raises(UserError, match="name point 30 of a batch of 18"):
        connect("data", positions, torch.tensor([[0, 30], [1, 2]]))


def test_the_network_of_an_edge_sees_edge_source_and_target(edges, features):
    """The first map, applied to the points before they are gathered, is that of the joined features."""
    graph = graph_of_edges(edges, SAMPLES, POINTS)
    network = EdgeMlp(CHANNELS, hidden_layers=1).double()
    e = torch.randn(*graph.rows.shape, CHANNELS, dtype=torch.float64)
    target = features.unsqueeze(2).expand_as(e)
    joined = torch.cat([e, graph.sources(features), target], dim=-1)
    check_equal(network(e, features, graph), network.norm(network.mlp(joined)), features)


def test_edge_features_do_not_depend_on_the_unit_of_length():
    """Also of a sample whose only edge has no length, and of one beside it."""
    positions = torch.rand(2, POINTS, 2, dtype=torch.float64)
    positions[1] = positions[1, 0]
    graph = nearest_graph(positions, positions, NeighbourGraph(neighbours=4))
    found = edge_features(positions, graph)
    torch.testing.assert_close(edge_features(1000 * positions, graph), found)
    torch.testing.assert_close(found[0, ..., 2].mean().item(), 1.0)
    torch.testing.assert_close(found[..., :2].norm(dim=-1), found[..., 2])
    assert not found[1].any()
