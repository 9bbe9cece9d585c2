"""DeepONet with a transformer branch: a field from observations at other points.

Axes: B batch, K observations, N query points, X coordinates, C channels, W width.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from linearno.models.registry import PublishedFormat, model
from linearno.nn.latent_attention import ExactLinear, merge_heads, require_heads, split_heads
from linearno.nn.observations import Observed, Output, Points, Values, join_observations, require_points

Tokens = Float[Tensor, "B K W"]
Code = Float[Tensor, "B 1 W"]


class EncoderLayer(nn.Module):
    """norm(t + attention(t)), then norm(t + mlp(t)) with a ReLU and a hidden width of 2W."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(tokens).chunk(3, dim=-1))
        rate = self.rate if self.training else 0.0
        mixed = merge_heads(scaled_dot_product_attention(query, key, value, dropout_p=rate))
        tokens = self.norm_attention(tokens + self.dropout(self.merge(mixed)))
        hidden = self.dropout(relu(self.inner(tokens)))
        return self.norm_mlp(tokens + self.dropout(self.outer(hidden)))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published completer; shapes determine all but the heads."""
    if "branch.feature" not in weights:
        return None
    layers = {name.split(".")[3] for name in weights if name.startswith("branch.encoder.layers.")}
    coords, features = (weights[f"{part}.mlp.0.weight"].shape[1] for part in ("trunk", "branch"))
    own = {"heads": hints["heads"]} if "heads" in hints else {}
    return own | {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights["dot.mlp.2.bias"]),
        "width": weights["branch.feature"].shape[-1],
        "depth": len(layers),
    }


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^branch\.feature$", "token"),
        (r"^branch\.mlp\.", "tokens."),
        (r"^branch\.encoder\.layers\.", "encoder."),
        (r"^trunk\.mlp\.", "trunk."),
        (r"^dot\.mlp\.", "head."),
        (r"\.self_attn\.in_proj_", ".qkv."),
        (r"\.self_attn\.out_proj\.", ".merge."),
        (r"\.norm1\.", ".norm_attention."),
        (r"\.norm2\.", ".norm_mlp."),
        (r"\.linear1\.", ".inner."),
        (r"\.linear2\.", ".outer."),
    ],
    hints=("heads",),
)


@model("deeponet", needs=("points",), published=(PUBLISHED,), family="reconstruction")
class DeepONet(nn.Module):
    """DeepONet that reconstructs a field from any number of observations (Lu et al., 2021).

    Papers: https://doi.org/10.1038/s42256-021-00302-5 (DeepONet) and https://arxiv.org/abs/2406.03923 (the
    variant for field reconstruction that this is).

        b = first token of encoder([token, tokens([p, u])])     K observations u at p → one code (W)
        u(q) = head(trunk(q) ⊙ b)                               at any points q

    The branch is a post-norm transformer encoder with a learned first token, so the order of the observations
    does not matter and its cost grows with K²; tokens, trunk and head are MLPs with leaky ReLUs. The cost is
    linear in the number of query points.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of observed channels; 1 or more.
        outputs: number of predicted channels.
        width: feature width W; even, and a multiple of `heads`.
        depth: number of encoder layers of the branch.
        heads: attention heads of the branch.
        dropout: fraction of features and attention weights of the branch that are dropped in training.

    >>> model = DeepONet(coords=2, inputs=1, outputs=1)
    >>> code = model.encode(coords, u)  # (B, K, 2), (B, K, 1) → (B, 1, W)
    >>> model.query(points, code)  # (B, N, 2) → (B, N, 1)
    """

    capturable = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        width: PositiveInt = 96,
        depth: PositiveInt = 4,
        heads: PositiveInt = 4,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ):
        require_heads(width, heads)
        if width % 2:
            raise ValueError(f"width={width} is odd; hidden layers have half of it: take {width + 1}")
        if inputs < 1:
            raise ValueError("DeepONet reconstructs a field from observations: it needs inputs=1 or more")
        super().__init__()
        self.sizes = (coords, inputs)
        half = width // 2
        self.tokens = nn.Sequential(
            ExactLinear(coords + inputs, half), nn.LeakyReLU(), nn.Linear(half, width)
        )
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads, dropout) for _ in range(depth)))
        self.trunk = nn.Sequential(
            *(ExactLinear(coords, half), nn.LeakyReLU()),
            *(nn.Linear(half, half), nn.LeakyReLU()),
            *(nn.Linear(half, width), nn.LeakyReLU()),
            *(nn.Linear(width, width), nn.LeakyReLU()),
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), ExactLinear(width, outputs))

    def forward(self, coords: Observed, inputs: Values, *, points: Points | None = None) -> Output:
        """The field at `points`, by default where it was observed."""
        return self.query(coords if points is None else points, self.encode(coords, inputs))

    def encode(self, coords: Observed, inputs: Values) -> Code:
        """The code of the observations: all that a query needs."""
        tokens = self.tokens(join_observations(coords, inputs, *self.sizes))
        first = self.token.expand(tokens.shape[0], -1, -1)
        return self.encoder(torch.cat([first.to(tokens.dtype), tokens], dim=1))[:, :1]

    def query(self, points: Points, code: Code) -> Output:
        """The field at any points, each on its own."""
        require_points(points, self.sizes[0], code)
        return self.head(self.trunk(points) * code)
