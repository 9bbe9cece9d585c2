"""Graph neural operator (Li et al., 2020): integrals over the neighbours of a point with a learned kernel."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor

from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import NEAREST, GraphSource
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.graph import Graph
from linearno.nn.graph_operator import GraphOperator, graph_needs
from linearno.nn.kernel_integral import MatrixKernel, end_points
from linearno.nn.point_mlp import PointMlp


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a GNO in the form of the Geo-FNO repository."""
    if "conv1.nn.layers.0.weight" not in weights:
        return None
    width, features = weights["fc1.weight"].shape
    coords = weights["conv1.nn.layers.0.weight"].shape[1] // 2
    return {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights["fc3.bias"]),
        "width": width,
        "depth": sum(re.fullmatch(r"conv\d+\.root", name) is not None for name in weights),
        "kernel_width": len(weights["conv1.nn.layers.2.bias"]),
        "head_width": len(weights["fc2.bias"]),
        **({"graph": hints["graph"]} if "graph" in hints else {}),
    }


def number_layers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published convolutions as blocks; their matrix of the point itself acts from the right."""

    def rename(name: str) -> str:
        name = re.sub(r"^conv(\d+)", lambda found: f"blocks.{int(found[1]) - 1}", name)
        return re.sub(r"\.nn\.layers\.(\d+)", lambda found: f".kernel.layers.{int(found[1]) // 2}", name)

    turned = {name: tensor.T if name.endswith(".root") else tensor for name, tensor in weights.items()}
    renamed = {rename(name): tensor for name, tensor in turned.items()}
    own = [(r"\.root$", ".own.weight"), (r"^(blocks\.\d+)\.bias$", r"\1.own.bias")]
    for pattern, replacement in own:
        renamed = {re.sub(pattern, replacement, name): tensor for name, tensor in renamed.items()}
    return renamed


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[(r"^fc1\.", "lift.layers.0."), (r"^fc2\.", "head.layers.0."), (r"^fc3\.", "head.layers.1.")],
    hints=("graph",),
    convert=number_layers,
)


@model("gno", needs=graph_needs, published=(PUBLISHED,), family="points and graphs")
class GNO(GraphOperator):
    """Graph neural operator: kernel integrals over the neighbours of each point (Li et al., 2020).

    Paper: https://arxiv.org/abs/2003.03485. With the edges j → i of point i, and σ a GELU,

        h = lift([x, a]),   hᵢ ← σ(mean over j of κ(xⱼ, xᵢ)ᵀ hⱼ + W hᵢ + b),   u = head(h)

    without σ in the last layer. κ is a network with a width × width matrix as its value, another one in each
    layer. The mean over points within a radius approximates an integral: the layer does not depend on the
    mesh. The cost is O(E · width · kernel_width + N · width² · kernel_width) for E edges.

    The defaults are form and sizes of the Geo-FNO repository (https://github.com/neuraloperator/Geo-FNO), but
    for the graph, which is random there. Sizes in tables of AirfRANS and ShapeNet-Car are unpublished; our
    settings there are `graph={"radius": 0.05, "neighbours": 64}` and a radius of 0.2 with 32.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels W of the layers.
        depth: layers.
        kernel_width: channels of the second hidden layer of κ; the first has half as many.
        head_width: channels of the hidden layer of the head.
        graph: edges from the nearest points, in unscaled coordinates; "data": the `edges` of the data.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = GNO(coords=2, inputs=1, outputs=1)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    """

    sees_coords = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 32,
        depth: PositiveInt = 4,
        kernel_width: PositiveInt = 128,
        head_width: PositiveInt = 128,
        graph: GraphSource = NEAREST,
        time: bool = False,
    ):
        if kernel_width < 2:
            raise ValueError(f"kernel_width={kernel_width}: the first layer has half as many; set 2 or more")
        super().__init__(
            features=coords + inputs,
            lift=PointMlp((coords + inputs, width), exact_input=True),
            blocks=[
                MatrixKernel(width, 2 * coords, kernel_width, activate=layer < depth - 1)
                for layer in range(depth)
            ],
            head=PointMlp((width, head_width, outputs), activation="gelu", exact_output=True),
            graph=graph,
            time=TimeEmbedding(width) if time else None,
        )

    def _run_blocks(self, h: Tensor, *extra: Any) -> Tensor:
        _, coords, graph = extra
        return self.propagate(h, end_points(coords, graph), graph)

    def propagate(self, h: Tensor, features: Tensor, graph: Graph) -> Tensor:
        """Features (B, N, W) after all layers, from those before and edge features (B, N, K, 2X)."""
        for block in self.blocks:
            h = self._run_block(block, h, features, graph)
        return h
