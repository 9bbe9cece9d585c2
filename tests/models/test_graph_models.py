"""Models on graphs: edges of the data, packed meshes, and settings that do not fit."""

import pytest
import torch

from linearno import fit, from_published
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec
from linearno.models import MODELS, build_model
from linearno.nn.config import NeighbourGraph
from linearno.nn.graph import nearest_graph
from linearno.nn.graph_unet import fixed_keys, keep_points
from linearno.nn.padding import Padding
from linearno.ops.ragged import offsets_of

NAMES = ["gno", "graphsage", "graphunet", "meshgraphnet"]
SIZES = [12, 7, 16]
SPEC = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), aux={"edges": "edge"})
NEAR = NeighbourGraph(neighbours=4)


def edges_of(points):
    """Edges (2, E) from the four nearest points to each point (N, 2)."""
    graph = nearest_graph(points[None], points[None], NEAR)
    targets = torch.arange(len(points))[:, None].expand_as(graph.rows[0])
    return torch.stack([graph.rows[0], targets]).flatten(1)


@pytest.fixture
def data():
    """Meshes of different sizes, with edges."""
    torch.manual_seed(0)
    samples = []
    for size in SIZES:
        points = torch.rand(size, 2)
        aux = {"edges": edges_of(points)}
        samples.append(Batch(points, torch.rand(size, 1), torch.rand(size, 1), aux=aux))
    return FieldData.pack(SPEC, samples)


def build(name, spec=SPEC, **settings):
    torch.manual_seed(0)
    return build_model(MODELS[name].config.make({"name": name, **settings}), spec).eval()


@pytest.mark.parametrize("name", NAMES)
def test_edges_of_the_data_give_what_the_same_edges_give_when_found(name, data):
    batch = data.everything()
    found, given = build(name, graph={"neighbours": 4}), build(name, graph="data")
    args = batch.coords, batch.inputs
    expected = found(*args, positions=batch.coords, segments=batch.segments)
    torch.testing.assert_close(given(*args, edges=batch.aux["edges"], segments=batch.segments), expected)
    first = [part[:, : SIZES[0]] for part in args]
    alone = given(*first, edges=edges_of(first[0][0]))
    torch.testing.assert_close(alone, expected[:, : SIZES[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_trains_on_packed_meshes_with_their_edges(name, data):
    bundle = fit(name, data, settings={"graph": "data"}, epochs=2, batch=2, device="cpu")
    assert bundle.predict_data(data, batch=2).shape == data.targets.shape


@pytest.mark.parametrize("name", NAMES)
def test_edges_are_found_in_unscaled_coordinates(name, data):
    batch = data.everything()
    model = build(name, graph={"radius": 0.3})
    stretched = batch.coords * torch.tensor([5.0, 0.2])
    some = model(stretched, batch.inputs, positions=batch.coords, segments=batch.segments)
    others = model(stretched, batch.inputs, positions=stretched, segments=batch.segments)
    assert (some - others).abs().max() > 1e-4
    graph = build(name, graph="data")
    near = nearest_graph(batch.coords, batch.coords, NeighbourGraph(radius=0.3, neighbours=35))
    owner = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    targets = torch.arange(35)[:, None].expand_as(near.rows[0])
    kept = near.exists[0] & (owner[near.rows[0]] == owner[targets])
    edges = torch.stack([near.rows[0][kept], targets[kept]])
    listed = graph(stretched, batch.inputs, positions=batch.coords, edges=edges, segments=batch.segments)
    torch.testing.assert_close(some, listed)


@pytest.mark.parametrize("name", NAMES)
def test_no_edges_and_no_radius_are_refused_before_training(name, data, tmp_path):
    plain = FieldData(
        SPEC.model_copy(update={"aux": {}}), data.coords, data.inputs, data.targets, data.offsets
    )
    with pytest.raises(UserError, match=r"needs edges.*without model\.graph=data") as refused:
        fit(name, plain, settings={"graph": "data"}, out=tmp_path / "run", device="cpu")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph": {"radius": -1.0}}, "graph.*radius"),
        ({"graph": {"neighbours": 0}}, "graph.*neighbours"),
        ({"graph": "mesh"}, "graph"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_settings_that_do_not_fit_are_refused_in_one_line(name, settings, message):
    with pytest.raises(UserError, match=message) as refused:
        build(name, **settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_given_edges_for_a_model_that_finds_its_graph_are_refused(name):
    x = torch.rand(1, 5, 2)
    with pytest.raises(UserError, match="leave edges out"):
        build(name)(x, torch.rand(1, 5, 1), edges=edges_of(x[0]))
    with pytest.raises(UserError, match="takes edges"):
        build(name, graph="data")(x, torch.rand(1, 5, 1), segments=offsets_of([2, 3]))


def test_published_weights_of_another_size_are_refused():
    weights = published_graphsage()
    weights["hidden_layers.0.lin_l.weight"] = torch.zeros(16, 12)
    with pytest.raises(UserError, match=r"blocks\.1\.neighbours\.weight is \(16, 12\), expected \(12, 12\)"):
        from_published(weights, coords=2)
    del weights["out_layer.lin_r.weight"]
    with pytest.raises(UserError, match=r"blocks\.2\.own\.weight"):
        from_published(weights, coords=2)


def published_graphsage(width=12, latent=3):
    """Weights of a published model of two layers with a norm."""
    shapes = {"encoder.lins.0": (latent, 5), "decoder.lins.0": (2, latent)}
    sage = {"in_layer": (width, latent), "hidden_layers.0": (width, width), "out_layer": (latent, width)}
    weights = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    weights |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    for name, shape in sage.items():
        weights |= {f"{name}.{part}.weight": torch.zeros(shape) for part in ("lin_l", "lin_r")}
        weights[f"{name}.lin_l.bias"] = torch.zeros(shape[0])
    weights |= {f"bn.{n}.{part}": torch.zeros(width) for n in (0, 1) for part in ("weight", "bias")}
    return weights


def test_published_weights_bring_the_published_graph():
    model = from_published(published_graphsage(), coords=2)
    assert model.graph == NeighbourGraph(radius=0.05, neighbours=64)
    assert from_published(published_graphsage(), coords=2, graph="data").graph == "data"


def test_graphunet_keeps_half_of_each_mesh_whatever_its_order():
    sizes = [12, 7, 1]
    padding = Padding(offsets_of(sizes), sum(sizes), torch.device("cpu"))
    positions = torch.rand(1, sum(sizes), 2)
    keys = fixed_keys(padding.pad(positions))
    kept, mask = keep_points(keys, padding.mask, 2)
    assert mask.sum(dim=1).tolist() == [6, 4, 1]
    for sample, points in enumerate(positions[0].split(sizes)):
        chosen = {*map(tuple, padding.pad(positions)[sample, kept[sample, mask[sample]]].tolist())}
        shuffled = points[torch.randperm(len(points))][None]
        alone, _ = keep_points(fixed_keys(4 * shuffled), None, 2)
        assert {*map(tuple, shuffled[0, alone[0]].tolist())} == chosen


def test_keys_of_positions_are_uniform_and_independent_of_their_scale():
    """In all of a boundary layer too, where points lie 1e-5 of the box apart."""
    x = torch.linspace(0, 1, 40)
    layer = torch.cat([torch.cartesian_prod(x, 1e-5 * torch.arange(50)), torch.tensor([[0.0, 1.0]])])
    for positions in (layer, 1e-6 * layer, torch.rand(2000, 2)):
        keys = fixed_keys(positions[None])[0, :2000].view(40, 50)
        assert (keys.sort(dim=1).values - torch.linspace(0, 1, 50)).abs().max() < 0.4
        assert (keys.flatten().sort().values - torch.linspace(0, 1, 2000)).abs().max() < 0.05
        assert torch.stack([keys[:, 1:].flatten(), keys[:, :-1].flatten()]).corrcoef()[0, 1].abs() < 0.1


def test_graphunet_draws_other_levels_at_every_call_of_training_only():
    x, a = torch.rand(1, 30, 2), torch.rand(1, 30, 1)
    model = build("graphunet")
    assert torch.equal(model(x, a), model(x, a))
    model.train()
    assert not torch.equal(model(x, a), model(x, a))


def test_graphunet_refuses_radii_of_another_number_of_levels():
    with pytest.raises(UserError, match=r"radii=\(0\.1, 0\.2\): expected one for each of the 4"):
        build("graphunet", radii=(0.1, 0.2))
