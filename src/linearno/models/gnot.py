"""GNOT (Hao et al., ICML 2023): linear cross-attention to input functions, and experts gated by the position.

Axes: B batch, N points, K observations, X coordinates, C channels, W width, E experts.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu

from linearno.models.published_spectral import infer_features
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import ReferenceDistances
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.grid_operator import PointFeatures
from linearno.nn.latent_attention import ExactLinear, Features, Mask, ResidualMlp, require_heads
from linearno.nn.library_transformer import PositionLift, lift_mlp, refuse_packed, time_need
from linearno.nn.linear_attention import LinearAttention
from linearno.nn.observations import Observed, Points, Values, join_observations, require_points
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.nn.transformer import initialise
from linearno.ops import Segments


class ExpertMlp(nn.Module):
    """Σ_e g_e (B_e GELU(A_e x + a_e) + b_e), with one product for the maps of all experts.

    Args:
        width: W of x and of the result.
        hidden: hidden width of each expert.
        experts: E.
    """

    def __init__(self, width: int, hidden: int, experts: int):
        super().__init__()
        self.experts = experts
        self.inner = nn.Linear(width, experts * hidden)
        self.outer = nn.Linear(experts * hidden, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(experts, width))
        for part in (self.outer.weight, self.bias):  # as an `nn.Linear` of each expert starts
            nn.init.uniform_(part, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Features, gates: Float[Tensor, "B N E"]) -> Features:
        hidden = gelu(self.inner(x)).unflatten(-1, (self.experts, -1))
        weighted = hidden * gates.unsqueeze(-1).to(hidden.dtype)
        return self.outer(weighted.flatten(-2)) + gates @ self.bias


class GnotBlock(nn.Module):
    """Cross-attention from points x to points y, then self-attention among x, each followed by experts.

        g = softmax_E(gate(p)),                    p: coordinates of the points x
        x ← x + cross(norm₁ x, norm₂ y),           x ← x + norm₃(Σ_e g_e mlp_e(x))
        x ← x + self(norm₄ x),                     x ← x + norm₅(Σ_e g_e mlp′_e(x))

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        mlp_ratio: hidden width of gate and experts, in multiples of W.
        experts: E.
        coords: X.
    """

    def __init__(self, width: int, heads: int, mlp_ratio: int, experts: int, coords: int):
        super().__init__()
        hidden = mlp_ratio * width
        self.norm_query, self.norm_key, self.norm_self = (nn.LayerNorm(width) for _ in range(3))
        self.cross_attention = LinearAttention(width, heads, "normalised")
        self.cross_mlp, self.norm_cross_mlp = ExpertMlp(width, hidden, experts), nn.LayerNorm(width)
        self.self_attention = LinearAttention(width, heads, "normalised")
        self.self_mlp, self.norm_self_mlp = ExpertMlp(width, hidden, experts), nn.LayerNorm(width)
        self.gate = nn.Sequential(
            *(ExactLinear(coords, hidden), nn.GELU()),
            *(nn.Linear(hidden, hidden), nn.GELU()),
            nn.Linear(hidden, experts),
        )

    def forward(
        self, x: Features, y: Float[Tensor, "B K W"], positions: Coords, mask: Mask | None = None
    ) -> Features:
        """`mask` is that of packed meshes, whose points x and y are the same."""
        gates = self.gate(positions).softmax(dim=-1)
        x = x + self.cross_attention(self.norm_query(x), self.norm_key(y), mask)
        x = x + self.norm_cross_mlp(self.cross_mlp(x, gates))
        x = x + self.self_attention(self.norm_self(x), mask=mask)
        return x + self.norm_self_mlp(self.self_mlp(x, gates))


BLOCK_NAMES = [
    (r"^attn_blocks\.", "blocks."),
    (r"\.ln1\.", ".norm_query."),
    (r"\.ln2\.", ".norm_key."),
    (r"\.ln3\.", ".norm_cross_mlp."),
    (r"\.ln4\.", ".norm_self."),
    (r"\.ln5\.", ".norm_self_mlp."),
    (r"\.cross_?attn\.", ".cross_attention."),
    (r"\.self_?attn\.", ".self_attention."),
    (r"_attention\.proj\.", "_attention.merge."),
    (r"\.gatenet\.", ".gate."),
    (r"\.moe_mlp1\.", ".cross_mlp."),
    (r"\.moe_mlp2\.", ".self_mlp."),
]


def infer_sizes(weights: Mapping[str, Tensor], blocks: str) -> dict[str, Any]:
    """What the shapes of the blocks of a published GNOT determine, given the name of the blocks."""
    width = len(weights[f"{blocks}.0.ln1.weight"])
    first = f"{blocks}.0.gatenet"
    return {
        "width": width,
        "depth": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith(f"{blocks}.")),
        "mlp_ratio": len(weights[f"{first}.0.bias"]) // width,
        "experts": len(weights[f"{first}.4.bias"]),
        "coords": weights[f"{first}.0.weight"].shape[1],
    }


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the maps of the experts, which are published one by one."""
    joined = {name: tensor for name, tensor in weights.items() if not re.search(r"_mlp\.\d+\.", name)}
    layers = {found[1] for name in weights if (found := re.match(r"(.*_mlp)\.0\.0\.weight$", name))}
    for layer in layers:
        experts = range(len([name for name in weights if re.match(rf"{layer}\.\d+\.0\.weight$", name)]))
        parts = {
            part: [weights[f"{layer}.{expert}.{part}"] for expert in experts]
            for part in ("0.weight", "0.bias", "2.weight", "2.bias")
        }
        joined[f"{layer}.inner.weight"] = torch.cat(parts["0.weight"])
        joined[f"{layer}.inner.bias"] = torch.cat(parts["0.bias"])
        joined[f"{layer}.outer.weight"] = torch.cat(parts["2.weight"], dim=1)
        joined[f"{layer}.bias"] = torch.stack(parts["2.bias"])
    return joined


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the library's GNOT; shapes determine all but the heads."""
    if "blocks.0.crossattn.key.weight" not in weights:
        return None
    found = infer_sizes(weights, "blocks")
    own = {"time": "time_fc.0.weight" in weights, "outputs": len(weights["fc2.bias"])}
    own |= {name: hints[name] for name in ("heads", "grid") if name in hints}
    features, grid = weights["preprocess_z.linear_pre.0.weight"].shape[1], hints.get("grid")
    known = {**hints, "coords": found["coords"]}
    return found | own | infer_features(features, known, 2 if grid is None else len(grid))


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *BLOCK_NAMES,
        (r"^preprocess_x\.", "trunk."),
        (r"^preprocess_z\.", "lift.network."),
        (r"\.linear_pre\.0\.", ".0."),
        (r"\.linear_post\.", ".2."),
        (r"^time_fc\.", "time.network."),
        (r"^fc1\.", "head.0."),
        (r"^fc2\.", "head.2."),
    ],
    hints=("heads", "append", "grid", "unified_pos"),
    convert=convert,
)


@model("gnot", needs=time_need, published=(PUBLISHED,), family="linear attention")
class GNOT(PointOperator):
    """GNOT: linear cross-attention and experts that are gated by the position (Hao et al., 2023).

    Paper: https://arxiv.org/abs/2302.14376. The coordinates p give queries x, coordinates and inputs a the
    input function y; blocks f (`GnotBlock`) let x attend to y and to itself, with linear attention
    q + q (kᵀ v) / (q · Σ k), q and k softmax over the channels of a head.

        x = trunk(p),  y = lift([p, a])
        library    y ← f(x, y) `depth` times, with the same x;   u = head(y)
        original   x ← f(x, y) `depth` times, with the same y;   u = head(x)

    In the form of the Neural-Solver-Library (https://github.com/thuml/Neural-Solver-Library), where the
    default sizes come from, trunk, lift and head are MLPs with one hidden layer of 2W. In the original one
    (https://github.com/HaoZhongkai/GNOT, where heads=1, depth=3, mlp_ratio=4, experts=1 are the defaults)
    they are residual MLPs with `mlp_layers` hidden layers. The cost is O(N · width²).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of gates and experts, in multiples of `width`.
        experts: E, MLPs in place of one.
        form: "library", or "original" as in the paper.
        mlp_layers: hidden layers of the residual MLPs of the original form.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        append: "coords" gives the coordinates to the lift twice, as the library's scripts for pipe flow do.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        unified: distances to reference points in place of the coordinates, but for the gates of the experts.

    >>> model = GNOT(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4)
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
        experts: PositiveInt = 3,
        form: Literal["library", "original"] = "library",
        mlp_layers: PositiveInt = 3,
        time: bool = False,
        append: Literal["coords"] | None = None,
        grid: tuple[PositiveInt, ...] | None = None,
        unified: ReferenceDistances | None = None,
    ):
        require_heads(width, heads)
        features = PointFeatures(coords, inputs, grid, unified, append)
        place = PointFeatures(coords, 0, grid, unified, None)
        library = form == "library"
        if library:
            lift: nn.Module = lift_mlp(features.channels, width)
            head: nn.Module = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), ExactLinear(2 * width, outputs)
            )
        else:
            lift = ResidualMlp(features.channels, width, width, mlp_layers, exact_input=True)
            head = ResidualMlp(width, width, outputs, mlp_layers, exact_output=True)
        super().__init__(
            features=coords + inputs,
            lift=PositionLift(coords, features, lift),
            blocks=[GnotBlock(width, heads, mlp_ratio, experts, coords) for _ in range(depth)],
            head=head,
            time=TimeEmbedding(width) if time else None,
        )
        self.grid_free_settings = features.grid_free_settings
        self.fixed_grid = grid if self.grid_free_settings else None
        self.place = place
        channels = place.channels
        self.trunk = lift_mlp(channels, width) if library else trunk_mlp(channels, width, mlp_layers)
        if library:
            self.apply(initialise)
            for part in self.modules():
                if isinstance(part, ExpertMlp):
                    nn.init.zeros_(part.bias)
        self.placeholder = nn.Parameter(torch.rand(width) / width) if library else None

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        refuse_packed(segments, self.fixed_grid, self.grid_free_settings)
        return self.apply_blocks(
            coords, inputs, time=time, segments=segments, shift=self.placeholder, positions=coords
        )

    def _run_blocks(self, h: Tensor, *extra: Tensor | None) -> Tensor:
        mask, positions = extra
        assert positions is not None
        x, y = self.trunk(self.place(positions, None)).to(h.dtype), h
        library = self.placeholder is not None
        for block in self.blocks:
            out = self._run_block(block, x, y, positions, mask)
            x, y = (x, out) if library else (out, y)
        return y if library else x


def trunk_mlp(coords: int, width: int, layers: int) -> ResidualMlp:
    """Coordinates → W, exact in its first map under autocast."""
    return ResidualMlp(coords, width, width, layers, exact_input=True)


def infer_completer(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published completer; shapes determine all but the heads."""
    if "attn_blocks.0.ln5.weight" not in weights:
        return None
    found = infer_sizes(weights, "attn_blocks")
    own = {"heads": hints["heads"]} if "heads" in hints else {}
    return (
        found
        | own
        | {
            "inputs": weights["branch_mlp.input.weight"].shape[1] - found["coords"],
            "outputs": len(weights["out_mlp.output.bias"]),
            "mlp_layers": sum(name.startswith("trunk_mlp.hidden.") for name in weights) // 2,
        }
    )


COMPLETER = PublishedFormat(
    infer=infer_completer,
    names=[
        *BLOCK_NAMES,
        (r"^trunk_mlp\.", "trunk."),
        (r"^branch_mlp\.", "branch."),
        (r"^out_mlp\.", "head."),
    ],
    hints=("heads",),
    convert=convert,
)


@model("cross-gnot", needs=("points",), published=(COMPLETER,), family="reconstruction")
class CrossGNOT(nn.Module):
    """GNOT that reconstructs a field at any points from observations at others (Hao et al., 2023).

    Papers: https://arxiv.org/abs/2302.14376 (GNOT) and https://arxiv.org/abs/2406.03923 (its use for field
    reconstruction).

        y = branch([p, u])                                 K observations u at p
        x = trunk(q),  x ← f(x, y) `depth` times           f: `GnotBlock`
        u(q) = head(x)                                     at any points q

    Blocks have self-attention among the query points: what is predicted at a point depends on the others that
    are queried with it. trunk, branch and head are residual MLPs with `mlp_layers` hidden layers. Weights are
    initialised as PyTorch does. The cost is O((N + K) · width²).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of observed channels; 1 or more.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of gates and experts, in multiples of `width`.
        experts: E, MLPs in place of one.
        mlp_layers: hidden layers of each residual MLP.

    >>> model = CrossGNOT(coords=2, inputs=1, outputs=1)
    >>> model(coords, u, points=points)  # (B, K, 2), (B, K, 1), (B, N, 2) → (B, N, 1)
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
        mlp_ratio: PositiveInt = 2,
        experts: PositiveInt = 2,
        mlp_layers: PositiveInt = 3,
    ):
        require_heads(width, heads)
        if inputs < 1:
            raise ValueError("CrossGNOT reconstructs a field from observations: it needs inputs=1 or more")
        super().__init__()
        self.sizes = (coords, inputs)
        self.trunk = trunk_mlp(coords, width, mlp_layers)
        self.branch = ResidualMlp(coords + inputs, width, width, mlp_layers, exact_input=True)
        self.blocks = nn.ModuleList(GnotBlock(width, heads, mlp_ratio, experts, coords) for _ in range(depth))
        self.head = ResidualMlp(width, width, outputs, mlp_layers, exact_output=True)

    def forward(self, coords: Observed, inputs: Values, *, points: Points | None = None) -> Output:
        """The field at `points`, by default where it was observed."""
        points = coords if points is None else points
        y = self.branch(join_observations(coords, inputs, *self.sizes)).to(coords.dtype)
        require_points(points, self.sizes[0], y)
        x = self.trunk(points).to(coords.dtype)
        for block in self.blocks:
            x = block(x, y, points)
        return self.head(x)
