"""FLARE (Puri et al., 2025): gather and scatter by attention with the same learned queries.

Axes: B batch, N points, W width, H heads, D head width, M slices.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.latent_attention import (
    Features,
    Mask,
    ResidualMlp,
    gather_points,
    merge_heads,
    require_heads,
    scatter_slices,
    split_heads,
)
from linearno.nn.point_operator import PointOperator

LATENT_STD = 0.1  # of the initial learned queries


def residual_mlp(width: int, layers: int) -> ResidualMlp:
    """W → W with both residuals and the approximate GELU, as keys, values and MLPs of a block are made."""
    return ResidualMlp(width, width, width, layers, approximate="tanh", add_input=True, add_hidden=True)


class FlareMixer(nn.Module):
    """Z = softmax_N(L Kᵀ) V,  Y = softmax_M(K Lᵀ) Z,  out = merge(Y), with keys K and values V of the points.

    The queries L are learned; gather and scatter share them and the keys. Logits are not divided by √D.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        slices: M.
        layers: hidden layers of the residual MLPs that make keys and values.
    """

    def __init__(self, width: int, heads: int, slices: int, layers: int):
        super().__init__()
        require_heads(width, heads)
        self.heads, self.slices = heads, slices
        self.latents = nn.Parameter(torch.randn(width, slices) * LATENT_STD)  # L: its memory is (H, M, D)
        self.key = residual_mlp(width, layers)
        self.value = residual_mlp(width, layers)
        self.merge = nn.Linear(width, width)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        key, value = (split_heads(part(h), self.heads) for part in (self.key, self.value))
        latents = self.latents.view(self.heads, self.slices, -1)
        slices = gather_points(latents, key, value, scale=1.0, mask=mask)
        return self.merge(merge_heads(scatter_slices(key, latents, slices, scale=1.0)))


class FlareBlock(nn.Module):
    """h + mixer(norm h), then h + mlp(norm h) with a residual MLP."""

    def __init__(self, width: int, mixer: nn.Module, layers: int):
        super().__init__()
        self.norm_mixer = nn.LayerNorm(width)
        self.mixer = mixer
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = residual_mlp(width, layers)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        h = h + self.mixer(self.norm_mixer(h), mask)
        return h + self.mlp(self.norm_mlp(h))


def initialise(module: nn.Module) -> None:
    """Weights of linear maps N(0, 0.02²), biases 0: `model.apply(initialise)`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class FlareOperator(PointOperator):
    """Lift and head of FLARE around blocks with the given mixers.

    Args:
        features: coordinates and input channels of a point together.
        outputs: number of predicted channels.
        width: feature width W.
        mixers: one per block.
        mlp_layers: hidden layers of the residual MLP of each block.
        head_layers: hidden layers of the residual MLPs before the first and after the last block.
        time: whether the model takes a time.
    """

    def __init__(
        self,
        *,
        features: int,
        outputs: int,
        width: int,
        mixers: list[nn.Module],
        mlp_layers: int,
        head_layers: int,
        time: bool,
    ):
        lift = ResidualMlp(
            features, width, width, head_layers, approximate="tanh", add_hidden=True, exact_input=True
        )
        head = ResidualMlp(
            width, width, outputs, head_layers, approximate="tanh", add_input=True, exact_output=True
        )
        super().__init__(
            features=features,
            lift=lift,
            blocks=[FlareBlock(width, mixer, mlp_layers) for mixer in mixers],
            head=nn.Sequential(nn.LayerNorm(width), head),
            time=TimeEmbedding(width) if time else None,
        )
        self.apply(initialise)


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published FLARE; shapes determine all but the heads and the number of coordinates."""
    if "blocks.0.att.latent_q" not in weights:
        return None
    width, features = weights["in_proj.fc1.weight"].shape
    coords = hints.get("coords", features)

    def layers(part: str) -> int:
        return sum(name.startswith(f"{part}.fcs.") for name in weights) // 2

    own = {"heads": hints["heads"]} if "heads" in hints else {}
    return own | {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights["out_proj.1.fc2.bias"]),
        "width": width,
        "depth": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        "slices": weights["blocks.0.att.latent_q"].shape[1],
        "key_layers": layers("blocks.0.att.k_proj"),
        "mlp_layers": layers("blocks.0.mlp"),
        "head_layers": layers("in_proj"),
    }


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^in_proj\.", "lift."),
        (r"^out_proj\.", "head."),
        (r"\.fc1\.", ".input."),
        (r"\.fcs\.", ".hidden."),
        (r"\.fc2\.", ".output."),
        (r"\.norm1\.", ".norm_mixer."),
        (r"\.norm2\.", ".norm_mlp."),
        (r"\.att\.latent_q$", ".mixer.latents"),
        (r"\.att\.k_proj\.", ".mixer.key."),
        (r"\.att\.v_proj\.", ".mixer.value."),
        (r"\.att\.out_proj\.", ".mixer.merge."),
    ],
    hints=("heads", "coords"),
)


@model(
    "flare", needs=lambda config: ("time",) * config.time, published=(PUBLISHED,), family="latent attention"
)
class FLARE(FlareOperator):
    """FLARE: fast low-rank attention routing engine (Puri et al., 2025).

    Paper: https://arxiv.org/abs/2508.12594. A block is h + mixer(norm h), then h + mlp(norm h), where the
    mixer gathers N points into M slices and scatters them back with the same learned queries L and keys K of
    each head (`FlareMixer`):

        Y = softmax_M(K Lᵀ) softmax_N(L Kᵀ) V

    Keys, values, MLPs, lift and head are residual MLPs. The cost is O(N · slices · width).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads, each with its own learned queries.
        slices: M, the rank of the attention of each head (published name: latents).
        key_layers: hidden layers of the residual MLPs that make keys and values.
        mlp_layers: hidden layers of the residual MLP of each block.
        head_layers: hidden layers of the residual MLPs before the first and after the last block.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = FLARE(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=8, slices=64)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 64,
        depth: PositiveInt = 8,
        heads: PositiveInt = 8,
        slices: PositiveInt = 64,
        key_layers: NonNegativeInt = 3,
        mlp_layers: NonNegativeInt = 3,
        head_layers: NonNegativeInt = 2,
        time: bool = False,
    ):
        super().__init__(
            features=coords + inputs,
            outputs=outputs,
            width=width,
            mixers=[FlareMixer(width, heads, slices, key_layers) for _ in range(depth)],
            mlp_layers=mlp_layers,
            head_layers=head_layers,
            time=time,
        )
