"""Point and graph models, filled with published weights, give the published outputs and gradients."""

import json
from pathlib import Path

import pytest
import torch

from linearno import from_published
from linearno.models.gino import GINO
from linearno.models.graphsage import GraphSAGE
from linearno.models.graphunet import GraphUNet
from linearno.models.meshgraphnet import MeshGraphNet
from linearno.models.mlp import MLP
from linearno.models.pointnet import PointNet
from linearno.nn.graph import edge_slots, graph_of_edges
from linearno.nn.graph_unet import Level, coarser_levels
from linearno.nn.kernel_integral import end_points
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


def test_graphunet_with_the_stored_levels():
    case = Case(FOLDER / "airfrans_gunet.npz")
    stored, levels, points = case.extra, [], len(case.extra["pos"])
    graph = graph_of_edges(stored["edge_index"], 1, points)
    for n in range(1, 5):
        kept, nearest = stored[f"kept_level{n}"][None], stored[f"nearest_level{n}"][None]
        edges = graph_of_edges(stored[f"edge_index_level{n}"], 1, kept.shape[1])
        levels.append(Level(kept, None, edges, nearest))

    def call(model, given):
        return model.head(model.blocks[0](model.lift(given["x"][None]), None, graph, levels))[0]

    case.check_published(call, coords=2)


def test_graphunet_finds_the_stored_levels_from_the_kept_points():
    """Keys that choose the stored points give the stored graphs and nearest points, edge by edge."""
    case = Case(FOLDER / "airfrans_gunet.npz")
    stored, model = case.extra, from_published(case.weights, coords=2)
    keys = torch.full((1, len(stored["pos"])), 5.0)
    for n in range(1, 5):
        keys[0, stored[f"kept_global_level{n}"]] = 5.0 - n
    coords = case.inputs["x"][None, :, :2]
    points = torch.arange(len(stored["pos"]))[None]
    for n, level in enumerate(coarser_levels(coords, keys, None, model.levels, model.pooling), start=1):
        finer, points = points, points.gather(1, level.kept)
        kept = stored[f"kept_global_level{n}"]
        assert torch.equal(points[0].sort().values, kept.sort().values)
        numbers = torch.full((len(stored["pos"]),), -1).scatter(0, points[0], torch.arange(len(kept)))
        source, target = stored[f"edge_index_level{n}"]
        expected = {*zip(numbers[kept[source]].tolist(), numbers[kept[target]].tolist(), strict=True)}
        rows, exists = level.graph.rows[0], level.graph.exists[0]
        found = {(row, i) for i in range(len(rows)) for row in rows[i][exists[i]].tolist()}
        assert found == expected
        previous = stored[f"kept_global_level{n - 1}"] if n > 1 else torch.arange(len(stored["pos"]))
        nearest = dict(zip(previous.tolist(), kept[stored[f"nearest_level{n}"]].tolist(), strict=True))
        assert [nearest[i] for i in finer[0].tolist()] == points[0, level.nearest[0]].tolist()


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


def test_gno_with_the_stored_edges():
    case = Case(FOLDER / "gno_geofno.npz")
    source, target = edges = case.extra["edge_index"]
    graph = graph_of_edges(edges, 1, 50)
    slots = edge_slots(target, target.bincount(minlength=50))
    x, stored = case.inputs["x"], case.inputs["edge_attr"]
    torch.testing.assert_close(end_points(x[None], graph)[0, target, slots], stored)
    torch.testing.assert_close(torch.cat([x[source], x[target]], dim=-1), stored)

    def call(model, given):
        features = given["edge_attr"].new_zeros(*graph.rows.shape, 4)
        features = features.index_put((torch.tensor(0), target, slots), given["edge_attr"])
        return model.head(model.propagate(model.lift(given["x"][None]), features, graph))[0]

    case.check_published(call)


def test_gino_with_the_stored_neighbours():
    """Inputs and their positions are different numbers, and outputs are at other points."""
    case = Case(FOLDER / "gino_small.npz")

    def call(model, given):
        nodes = case.inputs["latent_queries"].flatten(1, 2)
        torch.testing.assert_close(model.grid.points_of(nodes), nodes)
        tables = model.grid.graph_in(given["input_geom"], None), model.grid.graph_out(given["output_queries"])
        for graph, part in zip(tables, ("in", "out"), strict=True):
            assert torch.equal(graph.exists.sum(dim=-1)[0], case.extra[f"{part}_row_splits"].diff())
        states = model.encode(
            given["x"][..., :2],
            given["x"][..., 2:],
            positions=given["input_geom"].expand(2, -1, -1),
            latent_inputs=given["latent_features"].flatten(1),
        )
        return model.query(given["output_queries"].expand(2, -1, -1), states)

    case.check_published(call, latent=(8, 9), radius_in=0.23, radius_out=0.19)


def test_gino_has_the_published_number_of_parameters():
    """A complex weight counts as one there. The published modes are those of both signs."""
    with torch.device("meta"):
        model = GINO(coords=2, inputs=5, outputs=4, modes=(8, 9))
    complex_weights = sum(block.fourier.spectral.mixing.weight.numel() // 2 for block in model.blocks)
    assert sum(weight.numel() for weight in model.parameters()) - complex_weights == 2_733_355


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_published_model_is_rebuilt_with_its_exact_parameter_count(name):
    weights = {key: torch.zeros(shape) for key, shape in SHAPES[name]["state_dict"].items()}
    model = from_published(weights, coords=2)
    assert sum(weight.numel() for weight in model.parameters()) == SHAPES[name]["params"]


@pytest.mark.parametrize(
    ("cls", "count"),
    [(MLP, 19_988), (GraphSAGE, 29_204), (GraphUNet, 65_820), (MeshGraphNet, 2_332_676), (PointNet, 75_244)],
)
def test_the_defaults_are_the_published_sizes(cls, count):
    model = cls(coords=2, inputs=5, outputs=4)
    assert sum(weight.numel() for weight in model.parameters()) == count
    assert not spec_of(model).config.model_dump(exclude_defaults=True)
