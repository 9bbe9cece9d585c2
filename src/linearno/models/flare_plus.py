"""FLARE++ (2026): FLARE whose queries are themselves gathered from the points.

Axes: B batch, N points, W width, H heads, D head width, M slices.
"""

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from linearno.models.flare import FlareOperator
from linearno.models.registry import model
from linearno.nn.latent_attention import (
    Features,
    Mask,
    gather_points,
    merge_heads,
    require_heads,
    scatter_slices,
    split_heads,
)


class FlarePlusMixer(nn.Module):
    """Q = softmax_N(S K₀ᵀ/√D) V₀,  Z = softmax_N(Q Kᵀ/√D) V,  Y = softmax_M(K Qᵀ/√D) Z,  out = merge(Y).

    S are learned seeds; [K₀, V₀, K, V] is one linear map of the points.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        slices: M.
    """

    def __init__(self, width: int, heads: int, slices: int):
        super().__init__()
        self.heads = heads
        self.seeds = nn.Parameter(torch.randn(heads, slices, require_heads(width, heads)))
        self.project = nn.Linear(width, 4 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        parts = self.project(h).chunk(4, dim=-1)
        seed_key, seed_value, key, value = (split_heads(part, self.heads) for part in parts)
        query = gather_points(self.seeds, seed_key, seed_value, mask=mask)
        slices = gather_points(query, key, value, mask=mask)
        return self.merge(merge_heads(scatter_slices(key, query, slices)))


@model("flare++", needs=lambda config: ("time",) * config.time, family="latent attention")
class FLAREPlus(FlareOperator):
    """FLARE++: FLARE with queries that depend on the input (2026).

    Paper: https://arxiv.org/abs/2608.11519. A mixer (`FlarePlusMixer`) has three attentions of linear cost in
    place of two: learned seeds gather the queries, the queries gather the points into M slices, and the
    points read them back. Blocks, lift and head are those of `FLARE`.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads, each with its own learned seeds.
        slices: M, the rank of the attention of each head.
        mlp_layers: hidden layers of the residual MLP of each block.
        head_layers: hidden layers of the residual MLPs before the first and after the last block.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = FLAREPlus(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=8, slices=64)
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
        mlp_layers: NonNegativeInt = 3,
        head_layers: NonNegativeInt = 2,
        time: bool = False,
    ):
        super().__init__(
            features=coords + inputs,
            outputs=outputs,
            width=width,
            mixers=[FlarePlusMixer(width, heads, slices) for _ in range(depth)],
            mlp_layers=mlp_layers,
            head_layers=head_layers,
            time=time,
        )
