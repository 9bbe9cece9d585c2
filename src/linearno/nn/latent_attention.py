"""Softmax attention between N points and M slices with a query, key or latent vector per head.

Axes: B batch, N points, W width, H heads, D head width (W = H·D, head-major), M slices,
V width of values, R rows (N or M).
All products run through `scaled_dot_product_attention`, which stores no N×M tensor.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

Features = Float[Tensor, "B N W"]
Mask = Bool[Tensor, "B N"]  # False: a padded entry, excluded from sums over the points


def require_heads(width: int, heads: int) -> int:
    """The head width; `ValueError` if the heads do not divide the width."""
    if width % heads:
        raise ValueError(
            f"width={width} is not a multiple of heads={heads}; the next that is: {width + -width % heads}"
        )
    return width // heads


def split_heads(x: Float[Tensor, "B R W"], heads: int) -> Float[Tensor, "B H R D"]:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "B H R D"]) -> Float[Tensor, "B R W"]:
    return x.transpose(1, 2).flatten(-2)


def gather_points(
    query: Float[Tensor, "... H M D"],
    key: Float[Tensor, "B H N D"],
    value: Float[Tensor, "B H N V"],
    *,
    scale: float | None = None,
    mask: Mask | None = None,
    log_mass: Float[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H M V"]:
    """Average the values of the points in each slice: softmax over N of (q kᵀ · scale + log m), times v.

    Args:
        query: one query per slice, shared by the batch or for each sample.
        key: keys of the points.
        value: values of the points.
        scale: factor of the logits; 1/√D if None.
        mask: points that exist, if meshes are padded.
        log_mass: logarithm of the quadrature weight of each point.
    """
    bias: Tensor | None = None if mask is None else mask[:, None, None]
    if log_mass is not None:
        bias = (log_mass if mask is None else log_mass.masked_fill(~mask, -torch.inf))[:, None, None]
    query = query.expand(key.shape[0], -1, -1, -1)
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def scatter_slices(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "... H M D"],
    value: Float[Tensor, "B H M V"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "B H N V"]:
    """Interpolate the slices at the points: softmax over M of (q kᵀ · scale), times v."""
    return scaled_dot_product_attention(query, key.expand(query.shape[0], -1, -1, -1), value, scale=scale)


class ExactLinear(nn.Linear):
    """A linear map in the precision of its weights, also under autocast.

    For coordinates, whose rounding to bf16 would merge neighbouring points, and for predictions.
    """

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


class RmsNorm(nn.RMSNorm):
    """x / √(mean x² + ε) · γ over the last axis, in the precision of γ, also under autocast."""

    def __init__(self, width: int):
        super().__init__(width, eps=1e-6)

    def forward(self, x: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows W"]:
        return super().forward(x.to(self.weight.dtype))


class PlainLayerNorm(nn.LayerNorm):
    """(x − mean x) / √(var x + ε) · γ over the last axis, in the precision of γ, also under autocast."""

    def __init__(self, width: int):
        super().__init__(width, bias=False)

    def forward(self, x: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows W"]:
        return super().forward(x.to(self.weight.dtype))


NormKind = Literal["rms", "layer"]
NORMS: dict[NormKind, type[RmsNorm | PlainLayerNorm]] = {"rms": RmsNorm, "layer": PlainLayerNorm}


def gather_by_scores(
    scores: nn.Linear, x: Features, value: Float[Tensor, "B N V"], mask: Mask | None = None
) -> Float[Tensor, "B M V"]:
    """softmax over N of the scores w_m · x_n + b_m, times the values of the points.

    Attention with one head whose queries are the rows of the weight; the bias cancels in the softmax.
    """
    return gather_points(scores.weight[None], x[:, None], value[:, None], scale=1.0, mask=mask)[:, 0]


def scatter_by_scores(
    scores: nn.Linear, x: Features, slices: Float[Tensor, "B M V"]
) -> Float[Tensor, "B N V"]:
    """softmax over M of the scores w_m · x_n + b_m, times the values of the slices."""
    keys = scores.weight.expand(x.shape[0], 1, -1, -1)
    bias = scores.bias.expand(x.shape[0], 1, x.shape[1], -1)
    return scaled_dot_product_attention(x[:, None], keys, slices[:, None], bias, scale=1.0)[:, 0]


class MultiHeadSelfAttention(nn.Module):
    """out(softmax(q kᵀ / √D) v) among M slices, with q, k, v, out: W → W.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        query_bias: whether q has a bias.
        key_bias: whether k and v have one.
        output_bias: whether the output map has one.
        normalise: norms of queries and keys over each head, with a scale per channel; None: no norms.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        query_bias: bool = True,
        key_bias: bool = True,
        output_bias: bool = True,
        normalise: NormKind | None = None,
    ):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=query_bias)
        self.key = nn.Linear(width, width, bias=key_bias)
        self.value = nn.Linear(width, width, bias=key_bias)
        self.out = nn.Linear(width, width, bias=output_bias)
        norm = nn.Identity if normalise is None else NORMS[normalise]
        self.norm_query, self.norm_key = norm(width // heads), norm(width // heads)

    def forward(self, z: Float[Tensor, "B M W"]) -> Float[Tensor, "B M W"]:
        query, key, value = (split_heads(part(z), self.heads) for part in (self.query, self.key, self.value))
        mixed = scaled_dot_product_attention(self.norm_query(query), self.norm_key(key), value)
        return self.out(merge_heads(mixed))


class ResidualMlp(nn.Module):
    """r = σ(A x) [+ x];  r = r + σ(A_i r), i = 1 … layers;  y = C r [+ r];  σ = GELU, every map with a bias.

    Args:
        inputs: features of x.
        width: hidden features r.
        outputs: features of y.
        layers: hidden maps A_i.
        approximate: "tanh" is the approximate GELU.
        add_input: adds x to the first hidden features (inputs = width).
        add_hidden: adds the last hidden features to the output (outputs = width).
        exact_input: the first map is exact under autocast, for coordinates.
        exact_output: the last map is exact under autocast, for predictions.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        layers: int,
        *,
        approximate: Literal["none", "tanh"] = "none",
        add_input: bool = False,
        add_hidden: bool = False,
        exact_input: bool = False,
        exact_output: bool = False,
    ):
        super().__init__()
        self.approximate, self.add_input, self.add_hidden = approximate, add_input, add_hidden
        self.input = (ExactLinear if exact_input else nn.Linear)(inputs, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.output = (ExactLinear if exact_output else nn.Linear)(width, outputs)

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        r = self.features(x)
        return self.output(r) + r if self.add_hidden else self.output(r)

    def features(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows W"]:
        """r after the last hidden map."""
        r = gelu(self.input(x), approximate=self.approximate)
        r = r + x if self.add_input else r
        for layer in self.hidden:
            r = r + gelu(layer(r), approximate=self.approximate)
        return r
