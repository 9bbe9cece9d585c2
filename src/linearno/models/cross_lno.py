"""LNO as a completer: a field from observations at other points (Wang and Wang, NeurIPS 2024).

Axes: B batch, K observations, N query points, X coordinates, C channels, W width, M slices.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models.lno import BLOCK_NAMES, LatentBlock, Slices, infer_sizes
from linearno.models.registry import PublishedFormat, model
from linearno.nn.latent_attention import ResidualMlp, gather_by_scores, require_heads, scatter_by_scores
from linearno.nn.observations import Observed, Output, Points, Values, join_observations, require_points


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published completer; shapes determine all but the heads."""
    if "trunk_mlp.input.weight" not in weights or "attn_blocks.0.ln5.weight" in weights:
        return None
    coords, features = (weights[f"{part}_mlp.input.weight"].shape[1] for part in ("trunk", "branch"))
    own = {"coords": coords, "inputs": features - coords}
    own |= {"heads": hints["heads"]} if "heads" in hints else {}
    return infer_sizes(weights, "trunk_mlp", "mode_mlp") | own


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *BLOCK_NAMES,
        (r"^trunk_mlp\.", "trunk."),
        (r"^branch_mlp\.", "branch."),
        (r"^mode_mlp\.", "scores."),
        (r"^encode_mlp\.", "encode_slices."),
        (r"^decode_mlp\.", "decode_slices."),
        (r"^Wv\.", "value."),
        (r"^ln\.", "norm."),
    ],
    hints=("heads",),
)


@model("cross-lno", needs=("points",), published=(PUBLISHED,), family="reconstruction")
class CrossLNO(nn.Module):
    """LNO that reconstructs a field at any points from observations at others (Wang and Wang, 2024).

    Paper: https://arxiv.org/abs/2406.03923.

        z = encode(softmax_K(s(trunk(p)))ᵀ V norm(branch([p, u])))   K observations u at p → M slices
        z ← z + attention(norm z),  z ← z + mlp(norm z)               `depth` times, among the slices
        u(q) = head(softmax_M(s(trunk(q))) decode(z))                 M slices → any points q

    trunk, branch and head are residual MLPs with `mlp_layers` hidden layers; s, V, encode and decode are
    linear. Query points do not see each other. Weights are initialised as PyTorch does; defaults are the
    published settings on Burgers' equation.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of observed channels; 1 or more.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks among the slices.
        heads: heads of the attention among the slices.
        slices: M, the number of latent positions (published name: modes).
        mlp_layers: hidden layers of each residual MLP.

    >>> model = CrossLNO(coords=2, inputs=1, outputs=1)
    >>> slices = model.encode(coords, u)  # (B, K, 2), (B, K, 1) → (B, M, W)
    >>> model.query(points, slices)  # (B, N, 2) → (B, N, 1)
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
        heads: PositiveInt = 8,
        slices: PositiveInt = 256,
        mlp_layers: PositiveInt = 3,
    ):
        require_heads(width, heads)
        if inputs < 1:
            raise ValueError("CrossLNO reconstructs a field from observations: it needs inputs=1 or more")
        super().__init__()
        self.sizes = (coords, inputs)
        self.trunk = ResidualMlp(coords, width, width, mlp_layers, exact_input=True)
        self.branch = ResidualMlp(coords + inputs, width, width, mlp_layers, exact_input=True)
        self.scores = nn.Linear(width, slices)
        self.norm = nn.LayerNorm(width)
        self.value = nn.Linear(width, width)
        self.encode_slices = nn.Linear(width, width)
        self.blocks = nn.Sequential(*(LatentBlock(width, heads) for _ in range(depth)))
        self.decode_slices = nn.Linear(width, width)
        self.head = ResidualMlp(width, width, outputs, mlp_layers, exact_output=True)

    def forward(self, coords: Observed, inputs: Values, *, points: Points | None = None) -> Output:
        """The field at `points`, by default where it was observed."""
        return self.query(coords if points is None else points, self.encode(coords, inputs))

    def encode(self, coords: Observed, inputs: Values) -> Slices:
        """The slices of the latent space after the blocks: all that a query needs."""
        observed = join_observations(coords, inputs, *self.sizes)
        value = self.value(self.norm(self.branch(observed)))
        slices = gather_by_scores(self.scores, self.trunk(coords), value)
        z: Tensor = self.blocks(self.encode_slices(slices).to(coords.dtype))
        return self.decode_slices(z)

    def query(self, points: Points, slices: Slices) -> Output:
        """The field at any points, each on its own."""
        require_points(points, self.sizes[0], slices)
        return self.head(scatter_by_scores(self.scores, self.trunk(points), slices))
