"""LNO (Wang and Wang, NeurIPS 2024): self-attention among slices of a learned latent space.

Axes: B batch, N points, K observations, X coordinates, W width, H heads, M slices.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import unit_grid
from linearno.nn.latent_attention import (
    MultiHeadSelfAttention,
    ResidualMlp,
    gather_by_scores,
    require_heads,
    scatter_by_scores,
)
from linearno.nn.padding import padding_of
from linearno.nn.point_operator import Coords, Inputs, Output, Time, join_features
from linearno.nn.transformer import require_grid
from linearno.ops import Segments

Slices = Float[Tensor, "B M W"]


class LatentBlock(nn.Module):
    """z + attention(norm z), then z + mlp(norm z) with a hidden width of 2W, among the slices."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = MultiHeadSelfAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, z: Slices) -> Slices:
        z = z + self.attention(self.norm_attention(z))
        return z + self.mlp(self.norm_mlp(z))


BLOCK_NAMES = [
    (r"^attn_blocks\.", "blocks."),
    (r"\.self_attn\.Wq\.", ".attention.query."),
    (r"\.self_attn\.Wk\.", ".attention.key."),
    (r"\.self_attn\.Wv\.", ".attention.value."),
    (r"\.self_attn\.proj\.", ".attention.out."),
    (r"\.ln1\.", ".norm_attention."),
    (r"\.ln2\.", ".norm_mlp."),
    (r"^out_mlp\.", "head."),
]


def infer_sizes(weights: Mapping[str, Tensor], trunk: str, scores: str) -> dict[str, Any]:
    """What the shapes of a published LNO or completer determine, given the names of its trunk and scores."""
    return {
        "outputs": len(weights["out_mlp.output.bias"]),
        "width": len(weights[f"{trunk}.input.bias"]),
        "depth": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("attn_blocks.")),
        "slices": len(weights[f"{scores}.bias"]),
        "mlp_layers": sum(name.startswith(f"{trunk}.hidden.") for name in weights) // 2,
    }


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published LNO; by default all that its trunk sees are coordinates."""
    if "trunk_projector.input.weight" not in weights:
        return None
    axes, features = (weights[f"{part}_projector.input.weight"].shape[1] for part in ("trunk", "branch"))
    own = {name: hints[name] for name in ("heads", "trunk", "time") if name in hints}
    if hints.get("trunk") == "grid":
        coords = hints.get("coords", features - axes)
        own |= {"grid": hints.get("grid"), "coords": coords, "inputs": features - axes - coords}
    else:
        coords = axes - bool(hints.get("time"))
        if hints.get("coords", coords) != coords:
            raise UserError(f"coords={hints['coords']} was given, but the trunk takes {coords}")
        own |= {"coords": coords, "inputs": features - axes}
    return infer_sizes(weights, "trunk_projector", "attention_projector.output") | own


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *BLOCK_NAMES,
        (r"^trunk_projector\.", "trunk."),
        (r"^branch_projector\.", "branch."),
        (r"^attention_projector\.", "scores."),
    ],
    hints=("heads", "coords", "trunk", "grid", "time"),
)


@model("lno", published=(PUBLISHED,), needs=lambda config: ("time",) * config.time, family="latent attention")
class LNO(nn.Module):
    """Latent neural operator: blocks work on M slices only (Wang and Wang, 2024).

    Paper: https://arxiv.org/abs/2406.03923.

        x̂ = trunk(p),  ŷ = branch([p, a]),  s = scores(x̂)        p: coordinates (and time), a: inputs
        z = softmax_N(s)ᵀ ŷ                                        N points → M slices
        z ← z + attention(norm z),  z ← z + mlp(norm z)            `depth` times, among the slices
        u = head(softmax_M(s) z)                                   M slices → N points

    trunk, branch, scores and head are residual MLPs with `mlp_layers` hidden layers. The cost is
    O(N · slices · width). Weights are initialised as PyTorch does.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks among the slices.
        heads: heads of the attention among the slices.
        slices: M, the number of latent positions (published name: modes).
        mlp_layers: hidden layers of each residual MLP.
        trunk: what the scores depend on: the coordinates, or the positions in the unit `grid`; the branch
            then sees both.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`; it is a further coordinate.

    >>> model = LNO(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=64)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    """

    capturable = True
    positions: Tensor | None

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 128,
        depth: PositiveInt = 4,
        heads: PositiveInt = 8,
        slices: PositiveInt = 256,
        mlp_layers: PositiveInt = 2,
        trunk: Literal["coords", "grid"] = "coords",
        grid: tuple[PositiveInt, ...] | None = None,
        time: bool = False,
    ):
        require_heads(width, heads)
        super().__init__()
        self.features, self.time = coords + inputs, time
        self.fixed_grid = require_grid(grid) if trunk == "grid" else None
        self.grid_free_settings = "" if self.fixed_grid is None else "trunk=coords"
        positions = None if self.fixed_grid is None else unit_grid(self.fixed_grid)
        self.register_buffer("positions", positions, persistent=False)
        axes = time + (coords if positions is None else positions.shape[-1])
        beside = inputs if positions is None else self.features

        self.trunk = ResidualMlp(axes, width, width, mlp_layers, exact_input=True)
        self.branch = ResidualMlp(axes + beside, width, width, mlp_layers, exact_input=True)
        self.scores = ResidualMlp(width, width, slices, mlp_layers)
        self.blocks = nn.Sequential(*(LatentBlock(width, heads) for _ in range(depth)))
        self.head = ResidualMlp(width, width, outputs, mlp_layers, exact_output=True)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        if segments is not None and self.fixed_grid is not None:
            raise UserError("a model tied to a grid takes no packed meshes; build it with trunk=coords")
        if (time is None) == self.time:
            raise UserError(f"this model takes {'a' if self.time else 'no'} time input")
        z, padding = join_features(coords, inputs, self.features), padding_of(segments, coords)
        z = z if padding is None else padding.pad(z)
        p = self._positions(z[..., : coords.shape[-1]], time)
        beside = z if self.positions is not None else z[..., coords.shape[-1] :]
        x = self.scores.features(self.trunk(p))
        y = self.branch(torch.cat([p, beside], dim=-1))
        mask = None if padding is None else padding.mask
        slices = self.blocks(gather_by_scores(self.scores.output, x, y, mask).to(z.dtype))
        out = self.head(scatter_by_scores(self.scores.output, x, slices))
        return out if padding is None else padding.unpad(out)

    def _positions(self, coords: Coords, time: Time) -> Float[Tensor, "B N P"]:
        """What the trunk sees of each point."""
        p = coords if self.positions is None else self.positions.expand(coords.shape[0], -1, -1)
        if p.shape[1] != coords.shape[1]:
            raise UserError(f"this model was built for {p.shape[1]} points, got {coords.shape[1]}")
        if time is None:
            return p
        return torch.cat([p, time[:, None].expand(-1, p.shape[1], -1)], dim=-1)
