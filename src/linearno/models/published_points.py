"""Names and shapes of weights that published point and graph models share."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from linearno.nn.point_mlp import Activation

Weights = Mapping[str, Tensor]
Form = Literal["original", "simplified"]  # AirfRANS's, and that of the Neural-Solver-Library
ACTIVATIONS: dict[Form, Activation] = {"original": "relu", "simplified": "gelu"}
HINTS = ("coords",)
GRAPHS: dict[Form, dict[str, float]] = {  # of AirfRANS and of ShapeNet-Car, in metres
    "original": {"radius": 0.05, "neighbours": 64},
    "simplified": {"radius": 0.2, "neighbours": 32},
}
NAMES = [
    (r"\.lins\.(\d+)\.", r".layers.\1."),
    (r"\.linear_pre\.0\.", ".layers.0."),
    (r"\.linear_post\.", ".layers.1."),
    (r"^encoder\.", "lift."),
    (r"^decoder\.", "head."),
]
SAGE_NAMES = [(r"\.lin_l\.", ".neighbours."), (r"\.lin_r\.", ".own.")]  # of PyTorch Geometric's SAGEConv


def form_of(weights: Weights, own: str) -> Form | None:
    """Which of the forms of a model has a weight called `own`; None for another model."""
    if own not in weights:
        return None
    if "encoder.lins.0.weight" in weights:
        return "original"
    return "simplified" if "encoder.linear_pre.0.weight" in weights else None


def widths_of(weights: Weights, network: str) -> tuple[int, ...]:
    """Channels of the layers of a network of linear maps: input, hidden layers, output."""
    layers = []
    for name, tensor in weights.items():
        if found := re.fullmatch(rf"{network}\.(?:lins\.(\d+)|linear_pre\.0|(linear_post))\.weight", name):
            layers.append((int(found[1] or bool(found[2])), tensor.shape))
    layers.sort()
    return (layers[0][1][1], *(shape[0] for _, shape in layers))


def infer_sizes(weights: Weights, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Coordinates, inputs and outputs of a model with an encoder and a decoder."""
    features, outputs = widths_of(weights, "encoder")[0], widths_of(weights, "decoder")[-1]
    coords = hints.get("coords", features)
    return {"coords": coords, "inputs": features - coords, "outputs": outputs}


def infer_encoder(weights: Weights, form: Form) -> tuple[int, ...] | None:
    """Channels of the hidden layers of the encoder; None if they are the published ones."""
    _, *hidden, width = widths_of(weights, "encoder")
    return None if tuple(hidden) == hidden_layers(None, form, width) else tuple(hidden)


def hidden_layers(encoder: tuple[int, ...] | None, form: Form, width: int) -> tuple[int, ...]:
    """Channels of the hidden layers of encoder and decoder; the published ones if `encoder` is None."""
    if encoder is not None:
        return encoder
    return (64, 64) if form == "original" else (2 * width,)
