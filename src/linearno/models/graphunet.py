"""Graph U-Net (Gao and Ji, ICML 2019) as a baseline of AirfRANS: GraphSAGE layers on coarser levels."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from linearno.models import published_points as published
from linearno.models.published_points import ACTIVATIONS, Form
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import NEAREST, GraphSource, NeighbourGraph
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.graph import Graph
from linearno.nn.graph_operator import GraphOperator, graph_needs
from linearno.nn.graph_unet import SageUNet, coarser_levels, fixed_keys
from linearno.nn.point_mlp import PointMlp
from linearno.nn.point_operator import Coords

RADII = (0.05, 0.2, 0.5, 1.0)  # published, in scaled coordinates


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a GUNet among AirfRANS's baselines or of the Neural-Solver-Library."""
    form = published.form_of(weights, "down_layers.0.lin_l.weight")
    if form is None:
        return None
    depth = sum(re.fullmatch(r"up_layers\.\d+\.lin_l\.bias", name) is not None for name in weights)
    graph = hints.get("graph", published.GRAPHS[form])
    settings = {"width": len(weights["down_layers.0.lin_l.bias"]), "depth": depth, "form": form}
    levels = {
        "radii": hints.get("radii", RADII[:depth]),
        "neighbours": int(published.GRAPHS[form]["neighbours"]),
    }
    encoder = {"encoder": published.infer_encoder(weights, form), "graph": graph}
    return published.infer_sizes(weights, hints) | settings | levels | encoder


def place_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Norms as parts of the layers before them: first those on the way down, then those on the way up."""
    down = sum(re.fullmatch(r"blocks\.0\.down\.\d+\.own\.weight", name) is not None for name in weights)

    def layer(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"blocks.0.{f'down.{number}' if number < down else f'up.{number - down}'}.norm."

    return {re.sub(r"^bn\.(\d+)\.module\.", layer, name): tensor for name, tensor in weights.items()}


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[*published.NAMES, *published.SAGE_NAMES, (r"^(down|up)_layers\.", r"blocks.0.\1.")],
    hints=(*published.HINTS, "graph", "radii"),
    convert=place_norms,
)


def needs_of_levels(settings: Any) -> tuple[str, ...]:
    """Positions choose the points of the levels, also where the data have edges."""
    return tuple(dict.fromkeys((*graph_needs(settings), "positions")))


@model("graphunet", needs=needs_of_levels, published=(PUBLISHED,), family="points and graphs")
class GraphUNet(GraphOperator):
    """U-Net of GraphSAGE layers on graphs of fewer and fewer points (Gao and Ji, 2019).

    Paper: https://arxiv.org/abs/1905.05178. The defaults are the GUNet of AirfRANS (Bonnet et al., 2022,
    https://arxiv.org/abs/2212.07564), but for the graphs: each coarser level keeps half of the points, chosen
    at random, with edges between near ones. With the layers of `GraphSAGE`, h₀ = layer(encoder([x, a])),

        down:  hₙ = layer(kept points of hₙ₋₁)                         n = 1 … depth
        up:    hₙ ← layer([hₙ₊₁ at the nearest kept point, hₙ])        n = depth − 1 … 0
        u = decoder(h₀)

    Every call in training draws other points. In evaluation a fixed function of the positions chooses them:
    a prediction repeats, and does not depend on the order of the points. The cost is that of `GraphSAGE` with
    E edges and N points, E · width + N · width².

    AirfRANS has `graph={"radius": 0.05, "neighbours": 64}, radii=(0.05, 0.2, 0.5, 1), neighbours=64`.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels of the finest level; each coarser one has twice as many.
        depth: coarser levels.
        pooling: points of a level for each point of the next.
        encoder: channels of the hidden layers of the encoder; the decoder has the same. None: as published,
            two of 64, or one of twice `width` in the simplified form.
        form: "original", or "simplified" with GELUs in encoder and decoder, of the Neural-Solver-Library.
        graph: edges of the finest level from the nearest points, in unscaled coordinates; "data": the `edges`
            of the data.
        radii: lengths of the longest edges of the coarser levels, in scaled coordinates; None: any.
        neighbours: most edges to a point of the coarser levels.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = GraphUNet(coords=2, inputs=5, outputs=4)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 5) → (B, N, 4)
    """

    sees_coords = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 8,
        depth: PositiveInt = 4,
        pooling: PositiveInt = 2,
        encoder: tuple[PositiveInt, ...] | None = None,
        form: Form = "original",
        graph: GraphSource = NEAREST,
        radii: tuple[PositiveFloat, ...] | None = None,
        neighbours: PositiveInt = 25,
        time: bool = False,
    ):
        if radii is not None and len(radii) != depth:
            raise ValueError(f"radii={radii}: expected one for each of the {depth} coarser levels")
        activation = ACTIVATIONS[form]
        hidden = published.hidden_layers(encoder, form, width)
        super().__init__(
            features=coords + inputs,
            lift=PointMlp((coords + inputs, *hidden, width), activation=activation, exact_input=True),
            blocks=[SageUNet(width, depth)],
            head=PointMlp((width, *hidden, outputs), activation=activation, exact_output=True),
            graph=graph,
            time=TimeEmbedding(width) if time else None,
        )
        self.pooling = pooling
        self.levels = [
            NeighbourGraph(radius=radius, neighbours=neighbours) for radius in radii or (None,) * depth
        ]

    def _block_arguments(self, graph: Graph, positions: Coords) -> tuple[Any, ...]:
        keys = torch.rand_like(positions[..., 0]) if self.training else fixed_keys(positions)
        return graph, keys

    def _run_blocks(self, h: Tensor, *extra: Any) -> Tensor:
        mask, coords, graph, keys = extra
        levels = coarser_levels(coords, keys, mask, self.levels, self.pooling, cache=not self.training)
        return self._run_block(self.blocks[0], h, mask, graph, levels)
