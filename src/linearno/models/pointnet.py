"""PointNet (Qi et al., CVPR 2017) as a baseline of AirfRANS: each point and the maximum over all points."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_points as published
from linearno.models.published_points import ACTIVATIONS, Form
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.point_mlp import Features, Mask, PointMlp
from linearno.nn.point_operator import PointOperator


class GlobalMaximum(nn.Module):
    """z = local(h),  g = max over the points of pooled(z),  out = final(joint([z, g])).

    Args:
        width: W, channels in and out. z has 2W channels and g 32W.
        form: "original", or "simplified" with one hidden layer in each network and GELUs.
    """

    def __init__(self, width: int, form: Form = "original"):
        super().__init__()
        w, activation = width, ACTIVATIONS[form]
        original = form == "original"
        self.local = PointMlp((w, w if original else 2 * w, 2 * w), activation=activation)
        between = (4 * w, 8 * w) if original else (8 * w,)
        self.pooled = PointMlp((2 * w, *between, 32 * w), activation=activation)
        between = (16 * w, 8 * w) if original else (16 * w,)
        self.joint = PointMlp((34 * w, *between, 4 * w), activation=activation)
        self.final = nn.Linear(4 * w, w)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        z = self.local(h)
        every = self.pooled(z)
        if mask is not None:
            every = every.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        largest = every.amax(dim=1, keepdim=True).expand(-1, z.shape[1], -1)
        return self.final(self.joint(torch.cat([z, largest], dim=-1)))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a PointNet among AirfRANS's baselines or of the Neural-Solver-Library."""
    form = published.form_of(weights, "fcfinal.weight")
    if form is None:
        return None
    settings = {"width": len(weights["fcfinal.bias"]), "form": form}
    return (
        published.infer_sizes(weights, hints) | settings | {"encoder": published.infer_encoder(weights, form)}
    )


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        (r"^in_block\.", "blocks.0.local."),
        (r"^max_block\.", "blocks.0.pooled."),
        (r"^out_block\.", "blocks.0.joint."),
        (r"^fcfinal\.", "blocks.0.final."),
    ],
    hints=published.HINTS,
)


@model(
    "pointnet",
    needs=lambda config: ("time",) * config.time,
    published=(PUBLISHED,),
    family="points and graphs",
)
class PointNet(PointOperator):
    """PointNet: each point and the maximum over all points of a sample (Qi et al., 2017).

    Paper: https://arxiv.org/abs/1612.00593. The defaults are the baseline of AirfRANS (Bonnet et al., 2022,
    https://arxiv.org/abs/2212.07564). All networks are multilayer perceptrons at each point:

        z = local(encoder([x, a])),   g = max over n of pooled(zₙ),   u = decoder(final(joint([z, g])))

    The cost is O(N · width²). A point sees of the others only g, one vector for the sample. The simplified
    form is that of the Neural-Solver-Library, with one hidden layer of width 2W in encoder and decoder.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels W of encoded points; z has 2W channels and g 32W.
        encoder: channels of the hidden layers of the encoder; the decoder has the same. None: as published,
            two of 64, or one of 2W in the simplified form.
        form: "original" with ReLUs, or "simplified" with GELUs.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = PointNet(coords=2, inputs=5, outputs=4)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 5) → (B, N, 4)
    """

    capturable = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 8,
        encoder: tuple[PositiveInt, ...] | None = None,
        form: Form = "original",
        time: bool = False,
    ):
        activation = ACTIVATIONS[form]
        hidden = published.hidden_layers(encoder, form, width)
        super().__init__(
            features=coords + inputs,
            lift=PointMlp((coords + inputs, *hidden, width), activation=activation, exact_input=True),
            blocks=[GlobalMaximum(width, form)],
            head=PointMlp((width, *hidden, outputs), activation=activation, exact_output=True),
            time=TimeEmbedding(width) if time else None,
        )
