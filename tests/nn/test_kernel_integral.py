"""Kernel integrals with one value of the kernel for each channel."""

from pathlib import Path

import pytest
import torch

from linearno.nn.config import NeighbourGraph
from linearno.nn.embeddings import CoordinateWaves
from linearno.nn.graph import nearest_graph
from linearno.nn.kernel_integral import ChannelKernel
from tests.models.published_case import Case

FOLDER = Path(__file__).parents[1] / "fixtures" / "published" / "points"
CHANNELS = 3


def load(layer, weights):
    layer.load_state_dict(published_names(weights))
    return layer


def published_names(weights):
    return {
        name.replace("integral_transform.channel_mlp.fcs", "kernel.layers"): w for name, w in weights.items()
    }


@pytest.mark.parametrize("name", ["linear_mean", "nonlinear_nerf"])
def test_gives_the_published_outputs_and_gradients(name):
    case = Case(FOLDER / f"gno_block_{name}.npz")
    config = case.config
    waves = CoordinateWaves(
        config["coord_dim"], config["pos_embedding_channels"], config["pos_embedding_type"]
    )
    layer = ChannelKernel(
        config["in_channels"],
        waves,
        tuple(config["channel_mlp_layers"]),
        transform=config["transform_type"],
        reduction=config["reduction"],
    )
    counts = case.extra["neighbors_row_splits"].diff()
    assert int(counts.min()) == 0

    def call(layer, given):
        sources, targets, f = given["y"][None], given["x"][None], given["f_y"]
        graph = nearest_graph(sources, targets, NeighbourGraph(radius=config["radius"], neighbours=16))
        assert torch.equal(graph.exists.sum(dim=-1)[0], counts)
        out = layer(f.view(-1, *f.shape[-2:]), sources, targets, graph)
        return out.view(case.out.shape)

    case.check(load(layer, case.weights), call, published_names)


@pytest.fixture
def geometry():
    """Sources and targets of two samples, with targets that have no neighbours."""
    generator = torch.Generator().manual_seed(0)
    sources, targets = (torch.rand(2, n, 2, generator=generator, dtype=torch.float64) for n in (11, 7))
    targets[:, 0] += 9
    return sources, targets, nearest_graph(sources, targets, NeighbourGraph(radius=0.4, neighbours=11))


@pytest.mark.parametrize("transform", ["linear", "nonlinear"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_is_its_equation_edge_by_edge_in_value_and_gradient(transform, reduction, geometry):
    sources, targets, graph = geometry
    torch.manual_seed(1)
    layer = ChannelKernel(
        CHANNELS, CoordinateWaves(2, 4, "nerf"), (6, 5), transform=transform, reduction=reduction
    ).double()
    f = torch.randn(2, 11, CHANNELS, dtype=torch.float64, requires_grad=True)
    sums = []
    for sample in range(2):
        for i, near in enumerate((targets[sample, :, None] - sources[sample]).norm(dim=-1) <= 0.4):
            at_target = layer.embedding(targets[sample, i : i + 1]).expand(11, -1)
            seen = [layer.embedding(sources[sample]), at_target, f[sample]]
            values = layer.kernel(torch.cat(seen[: 3 if transform == "nonlinear" else 2], dim=-1)) * f[sample]
            total = values[near].sum(dim=0)
            sums.append(total / near.sum().clamp(min=1) if reduction == "mean" else total)
    expected = torch.stack(sums).view(2, 7, CHANNELS)
    found = layer(f, sources, targets, graph)
    torch.testing.assert_close(found, expected)
    assert not found[:, 0].any()
    cotangent, leaves = torch.randn_like(found), [f, *layer.parameters()]
    slopes = [torch.autograd.grad(out, leaves, cotangent, retain_graph=True) for out in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("transform", ["linear", "nonlinear"])
def test_samples_on_one_geometry_are_computed_as_each_by_itself(transform, geometry):
    sources, targets = (points[:1] for points in geometry[:2])
    layer = ChannelKernel(CHANNELS, CoordinateWaves(2, 4, "nerf"), (6,), transform=transform).double()
    settings = NeighbourGraph(radius=0.4, neighbours=11)
    f = torch.randn(3, 11, CHANNELS, dtype=torch.float64)
    found = layer(f, sources, targets, nearest_graph(sources, targets, settings))
    both = sources.repeat(3, 1, 1), targets.repeat(3, 1, 1)
    torch.testing.assert_close(found, layer(f, *both, nearest_graph(*both, settings)))
