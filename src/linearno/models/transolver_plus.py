"""Transolver++ (Luo et al., ICML 2025): slices sharpened by a temperature per point and Gumbel noise.

Axes: B batch, N points, W width, H heads, D head width, M slices, K conditions.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from linearno.core.errors import UserError
from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.latent_attention import ExactLinear, Features, Mask, merge_heads, require_heads, split_heads
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.nn.transformer import initialise
from linearno.ops import Segments

MIN_TEMPERATURE = 0.01
NOISE_EPS = 1e-8  # keeps both logarithms of the Gumbel noise finite
SUM_NORM_EPS = 1e-5  # added to the total weight of a slice

Noise = Literal["training", "always", "never"]


class AdaptiveSliceAttention(nn.Module):
    """Attention among slices whose weights have a temperature per point and head.

        X = stem(h)                                     split into heads
        τ_n = max(0.01, GELU(A₂ GELU(A₁ X_n)) + b_h)
        w = softmax_M((Wₛ X + g) / τ),                  g = −log(−log u) with u uniform in (0, 1)
        S = wᵀX / (Σ_n w + 1e-5),  S' = SelfAttention(S),  out = merge(w S')

    Maps A, Wₛ and those of the self-attention act on D channels and are shared by the heads.
    """

    def __init__(self, width: int, heads: int, slices: int, noise: Noise):
        super().__init__()
        head_width = require_heads(width, heads)
        self.heads, self.noise = heads, noise
        self.stem = nn.Linear(width, width)
        self.slices = nn.Linear(head_width, slices)
        self.temperature = nn.Sequential(
            nn.Linear(head_width, slices), nn.GELU(), nn.Linear(slices, 1), nn.GELU()
        )
        self.temperature_bias = nn.Parameter(torch.full((heads,), 0.5))
        self.query = nn.Linear(head_width, head_width, bias=False)
        self.key = nn.Linear(head_width, head_width, bias=False)
        self.value = nn.Linear(head_width, head_width, bias=False)
        self.merge = nn.Linear(width, width)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        x = split_heads(self.stem(h), self.heads)
        weights = self.weights(x)
        if mask is not None:
            weights = weights * mask[:, None, :, None]
        total = weights.sum(dim=2).unsqueeze(-1)  # B H M 1
        slices = weights.mT @ x / (total + SUM_NORM_EPS)
        mixed = scaled_dot_product_attention(self.query(slices), self.key(slices), self.value(slices))
        return self.merge(merge_heads(weights @ mixed.to(weights.dtype)))

    def weights(self, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N M"]:
        """w: how much of each point belongs to each slice."""
        temperature = self.temperature(x) + self.temperature_bias[:, None, None]
        scores = self.slices(x)
        if self.noise == "always" or (self.noise == "training" and self.training):
            scores = scores + gumbel_noise(scores)
        return (scores / temperature.clamp(min=MIN_TEMPERATURE)).softmax(dim=-1)


def gumbel_noise(scores: Tensor) -> Tensor:
    """Standard Gumbel numbers in the shape of the scores."""
    return -torch.log(-torch.log(draw_uniform(scores) + NOISE_EPS) + NOISE_EPS)


def draw_uniform(scores: Tensor) -> Tensor:
    """Numbers in (0, 1) in the shape of the scores, in float32 or the wider type of the scores."""
    return torch.rand_like(scores, dtype=torch.promote_types(scores.dtype, torch.float32))


class TransolverPlusBlock(nn.Module):
    """h + attention(norm h), then h + mlp(norm h)."""

    def __init__(self, width: int, heads: int, slices: int, mlp_ratio: int, noise: Noise):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = AdaptiveSliceAttention(width, heads, slices, noise)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width)
        )

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        h = h + self.attention(self.norm_attention(h), mask)
        return h + self.mlp(self.norm_mlp(h))


def needs(config: Any) -> tuple[str, ...]:
    return ("time",) * config.time + ("condition",) * bool(config.condition)


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published Transolver++: all but the number of coordinates follow from shapes."""
    if published.published_family(weights) != "transolver++":
        return None
    features = weights["preprocess.linear_pre.0.weight"].shape[1]
    coords = hints.get("coords", features)
    return published.infer_settings(weights, "in_project_slice") | {
        "coords": coords,
        "inputs": features - coords,
        "outputs": max(len(weights[name]) for name in weights if name.endswith(".mlp2.bias")),
        "time": "time_fc.0.weight" in weights,
        "condition": weights["embedding.weight"].shape[1] if "embedding.weight" in weights else 0,
        "noise": hints.get("noise", "always"),
    }


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Flatten the bias of the temperatures, one for each head."""
    return {
        name: tensor.flatten() if name.endswith(".temperature_bias") else tensor
        for name, tensor in weights.items()
    }


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.LINEARNO_NAMES,
        (r"^embedding\.", "condition."),
        (r"^norm\.", "head.0."),
        (r"^head\.(weight|bias)$", r"head.1.\1"),
        (r"\.merge\.0\.", ".merge."),
        (r"\.attention\.bias$", ".attention.temperature_bias"),
        (r"\.proj_temperature\.", ".temperature."),
        (r"\.in_project_slice\.", ".slices."),
    ],
    hints=("coords", "noise"),
    convert=convert,
)


@model("transolver++", needs=needs, published=(PUBLISHED,), family="slice attention")
class TransolverPlus(PointOperator):
    """Transolver++: Transolver with adaptive temperatures and Gumbel noise (Luo et al., 2025).

    Paper: https://arxiv.org/abs/2502.02414. Equations: `AdaptiveSliceAttention`. Each block is pre-norm
    attention and a pre-norm MLP on a residual stream; the lift is a two-layer MLP and the head a norm and a
    linear map. The cost is O(N · slices · width). The published code draws noise also when it predicts, so
    that its predictions are random: `noise="always"`, as which published weights are read unless
    `from_published` is given another `noise`.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        slices: M, the number of slices (physical states).
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        noise: when Gumbel noise joins the slice scores: "training", "always" (as published) or "never".
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        condition: K, numbers that describe a whole sample, as `forward(..., condition=(B, K))`; 0 for none.

    >>> model = TransolverPlus(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 128,
        depth: PositiveInt = 8,
        heads: PositiveInt = 8,
        slices: PositiveInt = 64,
        mlp_ratio: PositiveInt = 1,
        noise: Noise = "training",
        time: bool = False,
        condition: NonNegativeInt = 0,
    ):
        features = coords + inputs
        super().__init__(
            features=features,
            lift=nn.Sequential(ExactLinear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
            blocks=[TransolverPlusBlock(width, heads, slices, mlp_ratio, noise) for _ in range(depth)],
            head=nn.Sequential(nn.LayerNorm(width), ExactLinear(width, outputs)),
            time=TimeEmbedding(width) if time else None,
        )
        self.stochastic = noise != "never"
        self.condition = nn.Linear(condition, width) if condition else None
        self.apply(initialise)
        self.placeholder = nn.Parameter(torch.rand(width) / width)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        condition: Float[Tensor, "S K"] | None = None,
        segments: Segments | None = None,
    ) -> Output:
        if (condition is None) != (self.condition is None):
            raise UserError(f"this model takes {'no' if self.condition is None else 'a'} condition")
        shift: Tensor = self.placeholder
        if self.condition is not None and condition is not None:
            shift = shift + self.condition(condition)[:, None]
        return self.apply_blocks(coords, inputs, time=time, segments=segments, shift=shift)
