"""GraphSAGE (Hamilton et al., NeurIPS 2017) as a baseline of AirfRANS: means over neighbouring points."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import PositiveInt
from torch import Tensor

from linearno.models import published_points as published
from linearno.models.published_points import ACTIVATIONS, Form
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import NEAREST, GraphSource
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.graph_operator import GraphOperator, SageLayer, graph_needs
from linearno.nn.point_mlp import PointMlp


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a GraphSAGE among AirfRANS's baselines or of the Neural-Solver-Library."""
    form = published.form_of(weights, "in_layer.lin_l.weight")
    if form is None:
        return None
    width, latent = weights["in_layer.lin_l.weight"].shape
    depth = sum(name.startswith("bn.") and name.endswith(".weight") for name in weights)
    settings = {
        "width": width,
        "depth": depth,
        "latent": latent,
        "encoder": published.infer_encoder(weights, form),
    }
    graph = hints.get("graph", published.GRAPHS[form])
    return published.infer_sizes(weights, hints) | settings | {"form": form, "graph": graph}


def number_layers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published layers as blocks: first, hidden and last ones count from 0."""
    last = 1 + max(int(found[1]) for name in weights if (found := re.match(r"blocks\.(\d+)\.norm\.", name)))

    def block(name: str) -> str:
        name = re.sub(r"^hidden_layers\.(\d+)", lambda found: f"blocks.{int(found[1]) + 1}", name)
        return re.sub(r"^out_layer", f"blocks.{last}", name)

    return {block(name): tensor for name, tensor in weights.items()}


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        *published.SAGE_NAMES,
        (r"^in_layer\.", "blocks.0."),
        (r"^bn\.(\d+)\.", r"blocks.\1.norm."),
    ],
    hints=(*published.HINTS, "graph"),
    convert=number_layers,
)


@model("graphsage", needs=graph_needs, published=(PUBLISHED,), family="points and graphs")
class GraphSAGE(GraphOperator):
    """GraphSAGE: means over the neighbours of each point, layer by layer (Hamilton et al., 2017).

    Paper: https://arxiv.org/abs/1706.02216. The defaults are the baseline of AirfRANS (Bonnet et al., 2022,
    https://arxiv.org/abs/2212.07564), but for the graph. With the edges j → i of point i,

        h = encoder([x, a]),   hᵢ ← ReLU(norm(W₁ mean over j of hⱼ + b + W₂ hᵢ)),   u = decoder(h)

    where the last layer has neither norm nor ReLU, and norms take mean and variance over the points of a
    sample. The cost is O(E · width + N · width²) for E edges. A point sees those within depth + 1 edges.

    AirfRANS has `graph={"radius": 0.05, "neighbours": 64}` in metres, ShapeNet-Car a radius of 0.2 with 32.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels of the hidden layers.
        depth: layers with a norm and a ReLU; one more leads back to `latent` channels.
        latent: channels between encoder, layers and decoder.
        encoder: channels of the hidden layers of the encoder; the decoder has the same. None: as published,
            two of 64, or one of twice `latent` in the simplified form.
        form: "original", or "simplified" with GELUs in encoder and decoder, of the Neural-Solver-Library.
        graph: edges from the nearest points, in unscaled coordinates; "data": the `edges` of the data.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = GraphSAGE(coords=2, inputs=5, outputs=4)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 5) → (B, N, 4)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 64,
        depth: PositiveInt = 3,
        latent: PositiveInt = 8,
        encoder: tuple[PositiveInt, ...] | None = None,
        form: Form = "original",
        graph: GraphSource = NEAREST,
        time: bool = False,
    ):
        activation = ACTIVATIONS[form]
        hidden = published.hidden_layers(encoder, form, latent)
        layers = [SageLayer(*pair) for pair in pairwise((latent, *[width] * depth))]
        super().__init__(
            features=coords + inputs,
            lift=PointMlp((coords + inputs, *hidden, latent), activation=activation, exact_input=True),
            blocks=[*layers, SageLayer(width, latent, normalise=False, activate=False)],
            head=PointMlp((latent, *hidden, outputs), activation=activation, exact_output=True),
            graph=graph,
            time=TimeEmbedding(latent) if time else None,
        )
