"""MeshGraphNet (Pfaff et al., ICLR 2021): message passing with states at points and edges."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor

from linearno.models import published_points as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import NEAREST, GraphSource
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.graph import Graph
from linearno.nn.graph_operator import GraphOperator, graph_needs
from linearno.nn.message_passing import MessagePassing, NormalisedMlp, edge_features
from linearno.nn.point_mlp import PointMlp


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a MeshGraphNet of PhysicsNeMo."""
    if "node_encoder.model.0.weight" not in weights:
        return None
    width, features = weights["node_encoder.model.0.weight"].shape
    layers = sum(re.fullmatch(r"node_encoder\.model\.\d+\.bias", name) is not None for name in weights) - 1
    outputs = len(weights[f"node_decoder.model.{2 * layers - 2}.bias"])
    axes = weights["edge_encoder.model.0.weight"].shape[1] - 1
    depth = sum(name.endswith(".node_mlp.model.0.weight") for name in weights)
    sizes = {"coords": axes, "inputs": features - axes, "outputs": outputs}
    graph = hints.get("graph", published.GRAPHS["original"])
    return sizes | {"width": width, "depth": depth, "hidden_layers": layers - 1, "graph": graph}


def number_layers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published order of linear maps, activations and norm as that of ours: maps, and one norm."""

    def block(found: re.Match[str]) -> str:
        return f"blocks.{int(found[1]) // 2}.{found[2]}"

    def layer(found: re.Match[str]) -> str:
        number, odd = divmod(int(found[2]), 2)
        if odd:
            return f"{found[1]}.norm."
        return f"{found[1]}{'' if found[1] == 'head' else '.mlp'}.layers.{number}."

    def rename(name: str) -> str:
        name = re.sub(r"^processor\.processor_layers\.(\d+)\.(edge|node)_mlp", block, name)
        return re.sub(r"^(.*)\.model\.(\d+)\.", layer, name)

    return {rename(name): tensor for name, tensor in weights.items()}


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[(r"^node_encoder\.", "lift."), (r"^edge_encoder\.", "edges."), (r"^node_decoder\.", "head.")],
    hints=("graph",),
    unused=r"^device_buffer$",
    convert=number_layers,
)


@model("meshgraphnet", needs=graph_needs, published=(PUBLISHED,), family="points and graphs")
class MeshGraphNet(GraphOperator):
    """MeshGraphNet: message passing with states at points and edges (Pfaff et al., 2021).

    Paper: https://arxiv.org/abs/2010.03409. With the edges j → i of point i and their vectors dⱼᵢ = xⱼ − xᵢ,

        hᵢ = encoder([x, a]),   eⱼᵢ = encoder([dⱼᵢ, |dⱼᵢ|] / ℓ)
        eⱼᵢ ← eⱼᵢ + edge([eⱼᵢ, hⱼ, hᵢ]),   hᵢ ← hᵢ + node([Σ over j of eⱼᵢ, hᵢ])
        u = decoder(h)

    where encoders, edge and node networks end with a layer norm. ℓ is the mean length of the edges of a
    sample, our setting. The cost is O((E + N) · width²) for E edges. A point sees those within depth edges.
    The defaults are the sizes of PhysicsNeMo (https://github.com/NVIDIA/physicsnemo).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels W of points and edges, and of all hidden layers.
        depth: steps of message passing.
        hidden_layers: hidden layers of each network.
        graph: edges from the nearest points, in unscaled coordinates; "data": the `edges` of the data.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = MeshGraphNet(coords=2, inputs=5, outputs=4)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 5) → (B, N, 4)
    """

    sees_coords = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 128,
        depth: PositiveInt = 15,
        hidden_layers: PositiveInt = 2,
        graph: GraphSource = NEAREST,
        time: bool = False,
    ):
        hidden = (width,) * hidden_layers
        super().__init__(
            features=coords + inputs,
            lift=NormalisedMlp((coords + inputs, *hidden, width), exact_input=True),
            blocks=[MessagePassing(width, hidden_layers) for _ in range(depth)],
            head=PointMlp((width, *hidden, outputs), exact_output=True),
            graph=graph,
            time=TimeEmbedding(width) if time else None,
        )
        self.edges = NormalisedMlp((coords + 1, *hidden, width), exact_input=True)

    def _run_blocks(self, h: Tensor, *extra: Any) -> Tensor:
        _, coords, graph = extra
        return self.propagate(h, edge_features(coords, graph), graph)

    def propagate(self, h: Tensor, features: Tensor, graph: Graph) -> Tensor:
        """Point states (B, N, W) after all steps, from those before and edge features (B, N, K, X + 1)."""
        e = self.edges(features)
        for block in self.blocks:
            h, e = self._run_block(block, h, e, graph)
        return h
