"""Galerkin Transformer (Cao, NeurIPS 2021): attention without softmax over points, as a Galerkin projection.

Axes: B batch, N points, X coordinates, W width, H heads, D head width.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import ReferenceDistances
from linearno.nn.grid_operator import Append
from linearno.nn.latent_attention import Features, Mask, merge_heads, require_heads, split_heads
from linearno.nn.library_transformer import LibraryTransformer, feed_forward, time_need
from linearno.nn.linear_attention import LinearAttention, mean_product
from linearno.nn.point_operator import Coords, Inputs, Output, Time
from linearno.ops import Segments

Positions = Float[Tensor, "B N X"]

NORM_EPS = 1e-7  # of the norms of keys and values
START_GAIN = 1e-2  # of the random and of the diagonal part of the first queries, keys and values


class GalerkinBlock(nn.Module):
    """h + attention(norm_query h, norm_key h), then h + mlp(norm_mlp h)."""

    def __init__(self, width: int, heads: int, mlp_ratio: int):
        super().__init__()
        self.norm_query = nn.LayerNorm(width)
        self.norm_key = nn.LayerNorm(width)
        self.attention = LinearAttention(width, heads, "galerkin")
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = feed_forward(width, mlp_ratio)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        h = h + self.attention(self.norm_query(h), self.norm_key(h), mask)
        return h + self.mlp(self.norm_mlp(h))


class HeadNorm(nn.Module):
    """γ (x − mean) / √(var + ε) + β over the channels of each head, with separate γ and β per head.

    Args:
        heads: H.
        head_width: D.
    """

    def __init__(self, heads: int, head_width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, head_width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, head_width))

    def forward(self, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
        points_first = x.transpose(1, 2)  # as in memory: compiled gradients rely on it
        normed = nn.functional.layer_norm(points_first, x.shape[-1:], eps=NORM_EPS)
        return normed.transpose(1, 2) * self.weight + self.bias


class PositionedGalerkinAttention(nn.Module):
    """merge([p, q] ([p, norm k]ᵀ [p, norm v]) / N), with the coordinates p in every head.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        coords: X.
    """

    def __init__(self, width: int, heads: int, coords: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm_key, self.norm_value = (HeadNorm(heads, width // heads) for _ in range(2))
        self.merge = nn.Linear(width + heads * coords, width)

    def initialise(self) -> None:
        """Start with queries, keys and values close to 1/100 of the features."""
        for part in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(part.weight, gain=START_GAIN)
            with torch.no_grad():
                part.weight.diagonal().add_(START_GAIN)

    def forward(self, h: Features, positions: Positions, mask: Mask | None = None) -> Features:
        query, key, value = (split_heads(part(h), self.heads) for part in (self.query, self.key, self.value))
        p = positions[:, None].expand(-1, self.heads, -1, -1)
        query, key, value = (
            torch.cat([p, part.to(p.dtype)], dim=-1)
            for part in (query, self.norm_key(key), self.norm_value(value))
        )
        return self.merge(merge_heads(mean_product(query, key, value, mask)))


class OriginalGalerkinBlock(nn.Module):
    """h + attention(h, p), then h + mlp(h): norms are of keys and values alone."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, coords: int):
        super().__init__()
        self.attention = PositionedGalerkinAttention(width, heads, coords)
        self.mlp = feed_forward(width, mlp_ratio)

    def forward(self, h: Features, mask: Mask | None, positions: Positions) -> Features:
        h = h + self.attention(h, positions, mask)
        return h + self.mlp(h)


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the library's Galerkin Transformer; shapes determine all but the heads."""
    if "blocks.0.ln_1a.weight" not in weights:
        return None
    return published.infer_library_arguments(weights, hints)


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"\.ln_1\.", ".norm_query."),
        (r"\.ln_1a\.", ".norm_key."),
        (r"\.Attn\.proj\.", ".attention.merge."),
        *published.LIBRARY_NAMES,
    ],
    hints=published.LIBRARY_HINTS,
)


@model("galerkin", needs=time_need, published=(PUBLISHED,), family="linear attention")
class GalerkinTransformer(LibraryTransformer):
    """Galerkin Transformer: linear attention as a Galerkin projection (Cao, 2021).

    Paper: https://arxiv.org/abs/2105.14995. Each block adds attention and an MLP to the features h:

        library    q, k = softmax_D(Q norm₁ h), softmax_D(K norm₂ h),  v = V norm₂ h
                   h ← h + merge(q (kᵀ v) / N + q),   h ← h + mlp(norm₃ h)
        original   k, v = norm(K h), norm(V h) in each head, coordinates p beside q, k and v
                   h ← h + merge([p, q] ([p, k]ᵀ [p, v]) / N),   h ← h + mlp(h)

    The published results on the standard benchmarks are those of the form of the Neural-Solver-Library
    (https://github.com/thuml/Neural-Solver-Library). The original form is that of the encoder in
    https://github.com/scaomath/galerkin-transformer, without its dropout and between the same lift and head
    as the other: the convolutions and the spectral regressor around it on Darcy are left out. The cost is
    O(N · width²/heads).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        form: "library", or "original" as in the paper.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow.

    >>> model = GalerkinTransformer(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4)
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
        mlp_ratio: PositiveInt = 2,
        form: Literal["library", "original"] = "library",
        time: bool = False,
        grid: tuple[PositiveInt, ...] | None = None,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
    ):
        require_heads(width, heads)
        original = form == "original"

        def block() -> nn.Module:
            if original:
                return OriginalGalerkinBlock(width, heads, mlp_ratio, coords)
            return GalerkinBlock(width, heads, mlp_ratio)

        super().__init__(
            coords=coords,
            inputs=inputs,
            outputs=outputs,
            width=width,
            blocks=[block() for _ in range(depth)],
            time=time,
            grid=grid,
            unified=unified,
            append=append,
        )
        self.original = original
        for part in self.modules():
            if isinstance(part, PositionedGalerkinAttention):
                part.initialise()

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        self.require_packable(segments)
        positions = coords if self.original else None
        return self.apply_blocks(
            coords, inputs, time=time, segments=segments, shift=self.placeholder, positions=positions
        )
