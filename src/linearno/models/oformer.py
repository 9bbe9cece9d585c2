"""OFormer (Li et al., TMLR 2023): linear attention with rotary positions, read at any query points.

Axes: B batch, N points, K query points, X coordinates, C channels, W width, Z latent width.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.latent_attention import ExactLinear, Features, Mask
from linearno.nn.library_transformer import time_need
from linearno.nn.observations import require_points
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time, join_features
from linearno.nn.query_decoder import DirectHead, MarchingHead, QueryDecoder
from linearno.nn.rotary_attention import (
    GatedMlp,
    Positions,
    RotaryLinearAttention,
    States,
    require_pairs,
)
from linearno.ops import Segments

DECODER_SCALE = 16.0  # of the rotation in the decoder, in multiples of the resolution


class EncoderBlock(nn.Module):
    """h ← norm h,  h ← h + attention(h, p),  h ← norm h,  h ← h + mlp(h): norms act on the residual stream.

    Args:
        width: W.
        heads: attention heads, each of width W.
        coords: X.
        scale: of the rotation; see `Rotary`.
    """

    def __init__(self, width: int, heads: int, coords: int, scale: float):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = RotaryLinearAttention(width, heads, coords, scale, merge=heads > 1)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = GatedMlp(width)

    def forward(self, h: Features, mask: Mask | None, positions: Positions) -> Features:
        h = self.norm_attention(h)
        h = self.norm_mlp(h + self.attention(h, positions, mask))
        return h + self.mlp(h)


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of an OFormer whose state dicts are joined as "encoder." and "decoder."."""
    if "encoder.to_embedding.0.weight" not in weights:
        return None
    width, features = weights["encoder.to_embedding.0.weight"].shape
    coords = len(weights["decoder.coordinate_projection.0._B"])
    marches = "decoder.expand_feat.weight" in weights
    march = hints.get("march", 1) if marches else 0
    layers = [re.match(r"encoder\.s_transformer\.layers\.(\d+)\.", name) for name in weights]
    return {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights[f"decoder.to_out.{5 if marches else 4}.bias"]) * max(march, 1),
        "width": width,
        "depth": 1 + max(int(found[1]) for found in layers if found),
        "heads": len(weights["encoder.s_transformer.layers.0.1.to_qkv.weight"]) // (3 * width),
        "latent": weights["decoder.decoding_transformer.cross_attn_module.to_q.weight"].shape[1],
        "march": march,
    } | {name: hints[name] for name in ("resolution", "scales") if name in hints}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split joint projections, put coordinates before inputs, and leave stored frequencies out."""
    coords, found = len(weights["decoder.fourier.directions"]), {}
    first = "norm_head" if "decoder.to_out.0.bias" in weights else "network.0"
    for name, tensor in weights.items():
        if name.startswith("decoder.to_out.0."):
            found[name.replace("to_out.0", f"head.{first}")] = tensor
        elif name == "lift.0.weight":
            found[name] = torch.cat([tensor[:, -coords:], tensor[:, :-coords]], dim=1)
        elif joint := re.search(r"attention\.to_(qkv|kv)\.weight$", name):
            parts = ("query", "key", "value")[-len(joint[1]) :]
            for part, own in zip(parts, tensor.chunk(len(parts)), strict=True):
                found[f"{name[: joint.start()]}attention.{part}.weight"] = own
        elif not name.endswith("inv_freq"):
            found[name] = tensor
    return found


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^encoder\.to_embedding\.", "lift."),
        (r"^encoder\.s_transformer\.layers\.(\d+)\.0\.", r"blocks.\1.norm_attention."),
        (r"^encoder\.s_transformer\.layers\.(\d+)\.1\.", r"blocks.\1.attention."),
        (r"^encoder\.s_transformer\.layers\.(\d+)\.2\.", r"blocks.\1.norm_mlp."),
        (r"^encoder\.s_transformer\.layers\.(\d+)\.3\.", r"blocks.\1.mlp."),
        (r"^encoder\.(?:to_out|project_to_latent)\.0\.", "project."),
        (r"\.coordinate_projection\.0\._B$", ".fourier.directions"),
        (r"\.coordinate_projection\.1\.", ".network.0."),
        (r"\.coordinate_projection\.3\.", ".network.2."),
        (r"\.decoding_transformer\.cross_attn_module\.", ".attention."),
        (r"\.decoding_transformer\.ffn\.", ".mlp."),
        (r"\.mlp\.net\.0\.", ".mlp.inner."),
        (r"\.mlp\.net\.3\.", ".mlp.outer."),
        (r"\.attention\.to_q\.", ".attention.query."),
        (r"\.attention\.to_out\.0\.", ".attention.merge."),
        (r"^decoder\.expand_feat\.", "decoder.head.expand."),
        (r"^decoder\.propagator\.0\.0\.", "decoder.head.norm_propagator."),
        (r"^decoder\.propagator\.0\.1\.", "decoder.head.propagator."),
        (r"^decoder\.to_out\.([24])\.", r"decoder.head.network.\1."),
        *((rf"^decoder\.to_out\.{n + 1}\.", f"decoder.head.head.{n}.") for n in (0, 2, 4)),
    ],
    hints=("resolution", "scales", "march"),
    convert=convert,
)


@model("oformer", needs=time_need, published=(PUBLISHED,), family="linear attention")
class OFormer(PointOperator):
    """OFormer: linear attention with rotary positions, read at any query points (Li et al., 2023).

    Paper: https://arxiv.org/abs/2205.13671. An encoder of the points p with inputs a, a decoder of the query
    points q, with linear attention q (kᵀ v) / N in which positions rotate queries and keys (`Rotary`):

        h = A [p, a],   h ← norm h,  h ← h + attention(h),  h ← norm h,  h ← h + mlp(h)    `depth` times
        y = network(fourier(q)),   y ← y + attention(y; B h),   y ← y + mlp(y),   u = head([y, q])

    The form is that of https://github.com/BaratiLab/OFormer: for steady problems as above, for time-dependent
    ones with a decoder that marches in its latent space, z ← z + propagator([norm z, q]). `march` steps then
    give as many frames from one encoding. Query points do not see each other: `encode` gives matrices of
    4 · latent² numbers for any N, and `query` reads them anywhere. The cost is O(N · heads · width²).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels; a multiple of `march`.
        width: W of the encoder; a multiple of 2 X.
        depth: blocks of the encoder.
        heads: attention heads of the encoder, each of width W.
        latent: Z, width of the decoder; a multiple of 2 X.
        resolution: points along the side of the domain, by which coordinates are multiplied in rotations.
        scales: further factors of the coordinates in the blocks of the encoder, one for each; None:
            (resolution, resolution // 4, 1, 1, …), as published for Darcy flow.
        march: steps of the propagator, each of which gives outputs/march channels; 0: no propagator.
        dropout: fraction of the lifted features that is dropped in training.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`; it joins the lifted features.

    >>> model = OFormer(coords=2, inputs=1, outputs=1, resolution=85)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    >>> model.query(points, model.encode(coords, a))  # (B, K, 2) → (B, K, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 96,
        depth: PositiveInt = 6,
        heads: PositiveInt = 4,
        latent: PositiveInt = 256,
        resolution: PositiveInt = 64,
        scales: tuple[PositiveFloat, ...] | None = None,
        march: NonNegativeInt = 0,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        time: bool = False,
    ):
        require_pairs("width", width, coords)
        require_pairs("latent", latent, coords)
        factors = encoder_scales(resolution, scales, depth)
        if march and outputs % march:
            raise ValueError(f"march={march} steps cannot share {outputs} outputs evenly")
        lift = ExactLinear(coords + inputs, width, bias=False)
        super().__init__(
            features=coords + inputs,
            lift=nn.Sequential(lift, nn.Dropout(dropout)),
            blocks=[EncoderBlock(width, heads, coords, factor * resolution) for factor in factors],
            head=nn.Identity(),
            time=TimeEmbedding(width) if time else None,
        )
        self.project = nn.Linear(width, latent, bias=False)
        head = MarchingHead(latent, coords, outputs, march) if march else DirectHead(latent, coords, outputs)
        frequencies = 2 * latent if march else latent
        self.decoder = QueryDecoder(latent, coords, frequencies, DECODER_SCALE * resolution, head)
        self.axes = coords

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        return self.apply_blocks(coords, inputs, time=time, segments=segments, positions=coords)

    def encode(self, coords: Coords, inputs: Inputs = None) -> States:
        """What the attention of the decoder gathers from the points: all that a query needs."""
        h = self.lift(join_features(coords, inputs, self.features)).to(coords.dtype)
        return self._gather(h, None, coords)

    def query(self, points: Float[Tensor, "B K X"], states: States) -> Output:
        """The field at any points, each on its own."""
        require_points(points, self.axes, states)
        return self.decoder(points, states)

    def _gather(self, h: Features, mask: Mask | None, positions: Positions) -> States:
        z = self.project(super()._run_blocks(h, mask, positions))
        return self.decoder.attention.gather(z, positions, mask)

    def _run_blocks(self, h: Tensor, *extra: Tensor | None) -> Tensor:
        mask, positions = extra
        assert positions is not None
        return self.decoder(positions, self._gather(h, mask, positions))


def encoder_scales(resolution: int, scales: Sequence[float] | None, depth: int) -> tuple[float, ...]:
    """The factor of the coordinates in each block of the encoder."""
    if scales is None:
        return (float(resolution), float(max(resolution // 4, 1)), *[1.0] * depth)[:depth]
    if len(scales) != depth:
        raise ValueError(f"scales={tuple(scales)} are {len(scales)}, but there are depth={depth} blocks")
    return tuple(float(scale) for scale in scales)
