"""Point and graph models, filled with published weights, give the published outputs and gradients."""

import json
from pathlib import Path

import pytest
import torch

from linearno import from_published
from linearno.models.graphsage import GraphSAGE
from linearno.models.meshgraphnet import MeshGraphNet
from linearno.models.mlp import MLP
from linearno.models.pointnet import PointNet
from linearno.nn.graph import edge_slots, graph_of_edges
from linearno.nn.message_passing import edge_features
from linearno.nn.protocol import spec_of
from linearno.ops.ragged import offsets_of
from tests.models.published_case import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "published" / "points"
SHAPES = json.loads((FOLDER / "state_dicts.json").read_text())


def predict(model, x, **more):
    """One sample (N, F); its first two features are the coordinates."""
    return model(x[None, :, :2], x[None, :, 2:], **more)[0]


def test_mlp():
    Case(FOLDER / "airfrans_mlp.npz").check_published(
        lambda model, given: predict(model, given["x"]), coords=2
    )


def test_pointnet_of_two_packed_clouds():
    case = Case(FOLDER / "airfrans_pointnet.npz")
    segments = offsets_of(case.extra["batch"].bincount().tolist())
    case.check_published(lambda model, given: predict(model, given["x"], segments=segments), coords=2)


def test_graphsage_with_the_stored_edges():
    case = Case(FOLDER / "airfrans_graphsage.npz")
    edges = case.extra["edge_index"]
    case.check_published(lambda model, given: predict(model, given["x"], edges=edges), coords=2, graph="data")


def check_features(case, edges):
    """The stored edge features are those that the model computes from the stored positions."""
    positions = case.extra["pos"][None]
    graph = graph_of_edges(edges, 1, positions.shape[1])
    slots = edge_slots(edges[1], edges[1].bincount(minlength=positions.shape[1]))
    found = edge_features(positions, graph)[0, edges[1], slots]
    torch.testing.assert_close(found, case.inputs["edge_features"])
    return graph, slots


def test_meshgraphnet_with_the_stored_edges():
    case = Case(FOLDER / "meshgraphnet.npz")
    edges = case.extra["edge_index"]
    graph, slots = check_features(case, edges)

    def call(model, given):
        features = given["edge_features"].new_zeros(*graph.rows.shape, 3)
        features = features.index_put((torch.tensor(0), edges[1], slots), given["edge_features"])
        h = model.propagate(model.lift(given["node_features"][None]), features, graph)
        return model.head(h)[0]

    case.check_published(call)


@pytest.mark.parametrize(
    "name",
    ["AirfRANS/MLP", "AirfRANS/GraphSAGE", "AirfRANS/PointNet", "NSL/car/GraphSAGE", "NSL/car/PointNet"],
)
def test_every_published_model_is_rebuilt_with_its_exact_parameter_count(name):
    weights = {key: torch.zeros(shape) for key, shape in SHAPES[name]["state_dict"].items()}
    model = from_published(weights, coords=2)
    assert sum(weight.numel() for weight in model.parameters()) == SHAPES[name]["params"]


@pytest.mark.parametrize(
    ("cls", "count"), [(MLP, 19_988), (GraphSAGE, 29_204), (MeshGraphNet, 2_332_676), (PointNet, 75_244)]
)
def test_the_defaults_are_the_published_sizes(cls, count):
    model = cls(coords=2, inputs=5, outputs=4)
    assert sum(weight.numel() for weight in model.parameters()) == count
    assert not spec_of(model).config.model_dump(exclude_defaults=True)
