"""Multilayer perceptron at each point, as a baseline of AirfRANS (Bonnet et al., NeurIPS 2022)."""

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor

from linearno.models import published_points as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.point_mlp import PointMlp
from linearno.nn.point_operator import PointOperator


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the MLP among AirfRANS's baselines."""
    if published.form_of(weights, "nn.lins.0.weight") is None:
        return None
    latent, *hidden, _ = published.widths_of(weights, "nn")
    settings = {"width": hidden[0], "depth": len(hidden), "latent": latent}
    return (
        published.infer_sizes(weights, hints)
        | settings
        | {"encoder": published.widths_of(weights, "encoder")[1:-1]}
    )


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[*published.NAMES, (r"^nn\.", "blocks.0.")],
    hints=published.HINTS,
)


@model(
    "mlp", needs=lambda config: ("time",) * config.time, published=(PUBLISHED,), family="points and graphs"
)
class MLP(PointOperator):
    """Multilayer perceptron at each point (Bonnet et al., 2022).

    Paper: https://arxiv.org/abs/2212.07564. Encoder, network and decoder map each point by itself; hidden
    layers of the network are normalised with mean and variance of the sample (`PointNorm`):

        h = encoder([x, a]),   hᵢ₊₁ = ReLU(norm(Wᵢ hᵢ + bᵢ)),   u = decoder(W h + b)

    The cost is O(N · width²). It is what a model that does not see the neighbours of a point can learn.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels of the hidden layers of the network.
        depth: hidden layers of the network.
        latent: channels between encoder, network and decoder.
        encoder: channels of the hidden layers of the encoder; the decoder has the same.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = MLP(coords=2, inputs=5, outputs=4)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 5) → (B, N, 4)
    """

    capturable = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 64,
        depth: PositiveInt = 3,
        latent: PositiveInt = 8,
        encoder: tuple[PositiveInt, ...] = (64, 64),
        time: bool = False,
    ):
        super().__init__(
            features=coords + inputs,
            lift=PointMlp((coords + inputs, *encoder, latent), exact_input=True),
            blocks=[PointMlp((latent, *(width,) * depth, latent), normalise=True)],
            head=PointMlp((latent, *encoder, outputs), exact_output=True),
            time=TimeEmbedding(latent) if time else None,
        )
