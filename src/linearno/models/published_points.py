"""Names and shapes of weights that published point and graph models share."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

Weights = Mapping[str, Tensor]
HINTS = ("coords",)
NAMES = [  # of AirfRANS's baselines, then of the Neural-Solver-Library's
    (r"\.lins\.(\d+)\.", r".layers.\1."),
    (r"\.linear_pre\.0\.", ".layers.0."),
    (r"\.linear_post\.", ".layers.1."),
    (r"^encoder\.", "lift."),
    (r"^decoder\.", "head."),
]


def widths_of(weights: Weights, network: str) -> tuple[int, ...]:
    """Channels of the layers of a network of linear maps: input, hidden layers, output."""
    layers = sorted(
        (int(found[1]), tensor.shape)
        for name, tensor in weights.items()
        if (found := re.fullmatch(rf"{network}\.lins\.(\d+)\.weight", name))
    )
    return (layers[0][1][1], *(shape[0] for _, shape in layers))


def infer_ends(weights: Weights, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and settings that follow from the encoder and the decoder of one of AirfRANS's baselines."""
    features, *encoder, latent = widths_of(weights, "encoder")
    outputs = widths_of(weights, "decoder")[-1]
    coords = hints.get("coords", features)
    sizes = {"coords": coords, "inputs": features - coords, "outputs": outputs}
    return sizes | {"encoder": tuple(encoder), "latent": latent}
