"""LRSA (Yang et al., ICML 2026): gather into slices, a transformer block among them, scatter to the points.

Axes: B batch, N points, X coordinates, W width, H heads, D head width, M slices.
"""

from collections.abc import Mapping
from math import pi
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.latent_attention import (
    NORMS,
    ExactLinear,
    Features,
    Mask,
    MultiHeadSelfAttention,
    NormKind,
    gather_points,
    merge_heads,
    require_heads,
    scatter_slices,
    split_heads,
)
from linearno.nn.layers import GridConv
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.nn.transformer import require_grid
from linearno.ops import Segments

MIN_MASS = 1e-6  # of the mean mass of a point
GATED_HIDDEN_MULTIPLE = 16  # the hidden width of a gated MLP is rounded up to a multiple of this

BiasPlacement = Literal["none", "output", "no-query", "all"]
Slices = Float[Tensor, "B M W"]


class Fourier(Config):
    """Sines and cosines of the coordinates with `count` frequencies π 2^e, e from `low` to `high`.

    Args:
        count: frequencies per coordinate.
        low: smallest exponent.
        high: largest exponent.
        raw: whether the coordinates themselves are features too.
    """

    count: PositiveInt = 9
    low: float = -4.0
    high: float = 4.0
    raw: bool = True


class FourierFeatures(nn.Module):
    """[sin(x_c ω_k), cos(x_c ω_k)], coordinate-major, for each of the first coordinates of the features.

    Args:
        coords: X; the other features pass unchanged.
        settings: frequencies.
    """

    frequencies: Tensor

    def __init__(self, coords: int, settings: Fourier):
        super().__init__()
        self.coords, self.raw = coords, settings.raw
        exponents = torch.linspace(settings.low, settings.high, settings.count)
        self.register_buffer("frequencies", pi * 2**exponents, persistent=False)

    @property
    def added(self) -> int:
        """Features in place of the coordinates, less the number of coordinates."""
        return self.coords * (2 * len(self.frequencies) - (not self.raw))

    def forward(self, z: Float[Tensor, "B N F"]) -> Float[Tensor, "B N E"]:
        x = z[..., : self.coords]
        angles = (x.unsqueeze(-1) * self.frequencies).flatten(-2)
        rest = z if self.raw else z[..., self.coords :]
        return torch.cat([angles.sin(), angles.cos(), rest], dim=-1)


class FeedForward(nn.Module):
    """C GELU(A x), or gated: C (GELU(A x) ⊙ B x)."""

    def __init__(self, width: int, hidden: int, *, bias: bool, gated: bool):
        super().__init__()
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.outer = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "B R W"]) -> Float[Tensor, "B R W"]:
        inner = gelu(self.inner(x))
        return self.outer(inner if self.gate is None else inner * self.gate(x))


class ConvFeedForward(nn.Module):
    """C GELU(A norm(conv x)) with a dense 3×3 convolution on the grid and a layer norm."""

    def __init__(self, width: int, hidden: int, grid: tuple[int, ...]):
        super().__init__()
        self.conv = GridConv(width, grid)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.inner = nn.Linear(width, hidden, bias=False)
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: Features) -> Features:
        return self.outer(gelu(self.inner(self.norm(self.conv(x)))))


class PreNorm(nn.Module):
    """x + layer(norm x)."""

    def __init__(self, width: int, layer: nn.Module, norm: NormKind = "rms"):
        super().__init__()
        self.norm = NORMS[norm](width)
        self.layer = layer

    def forward(self, x: Float[Tensor, "B R W"]) -> Float[Tensor, "B R W"]:
        return x + self.layer(self.norm(x))


class Biases(NamedTuple):
    """Which maps of the attentions have a bias."""

    query: bool
    key: bool  # and value
    output: bool


BIASES = {
    "none": Biases(query=False, key=False, output=False),
    "output": Biases(query=False, key=False, output=True),
    "no-query": Biases(query=False, key=True, output=True),
    "all": Biases(query=True, key=True, output=True),
}


class Gather(nn.Module):
    """Z = O softmax_N(norm(P) norm(K h)ᵀ/√D + log m) V h with learned queries P: N points → M slices."""

    def __init__(self, width: int, heads: int, slices: int, bias: Biases, norm: NormKind):
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.empty(heads, slices, width // heads))
        self.key = nn.Linear(width, width, bias=bias.key)
        self.value = nn.Linear(width, width, bias=bias.key)
        self.out = nn.Linear(width, width, bias=bias.output)
        self.norm_query, self.norm_key = NORMS[norm](width // heads), NORMS[norm](width // heads)

    def forward(self, h: Features, mask: Mask | None, log_mass: Float[Tensor, "B N"] | None) -> Slices:
        key, value = (split_heads(part(h), self.heads) for part in (self.key, self.value))
        query = self.norm_query(self.latents)
        slices = gather_points(query, self.norm_key(key), value, mask=mask, log_mass=log_mass)
        return self.out(merge_heads(slices))


class Scatter(nn.Module):
    """O softmax_M(norm(Q h) norm(K z)ᵀ/√D) V z: M slices → N points."""

    def __init__(self, width: int, heads: int, bias: Biases, norm: NormKind):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias.query)
        self.key = nn.Linear(width, width, bias=bias.key)
        self.value = nn.Linear(width, width, bias=bias.key)
        self.out = nn.Linear(width, width, bias=bias.output)
        self.norm_query, self.norm_key = NORMS[norm](width // heads), NORMS[norm](width // heads)

    def forward(self, h: Features, z: Slices) -> Features:
        query = split_heads(self.query(h), self.heads)
        key, value = (split_heads(part(z), self.heads) for part in (self.key, self.value))
        return self.out(merge_heads(scatter_slices(self.norm_query(query), self.norm_key(key), value)))


class LrsaBlock(nn.Module):
    """One block; see `LRSA` for the equations.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        slices: M.
        hidden: hidden width of the MLPs.
        bias: which maps have a bias: none; attention outputs and MLPs; all but the queries; all.
        gated: whether MLPs are gated.
        mix_channels: whether an MLP acts on the gathered slices.
        mix_slices: whether self-attention and a second MLP act on them.
        norm: RMS norms or layer norms without a bias.
        grid: of the convolution before the MLP of the points; None: no convolution.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        slices: int,
        *,
        hidden: int,
        bias: BiasPlacement = "output",
        gated: bool = False,
        mix_channels: bool = True,
        mix_slices: bool = True,
        norm: NormKind = "rms",
        grid: tuple[int, ...] | None = None,
    ):
        super().__init__()
        own = BIASES[bias]

        def mlp() -> PreNorm:
            return PreNorm(width, FeedForward(width, hidden, bias=own.output, gated=gated), norm)

        self.norm_points = NORMS[norm](width)
        self.gather = Gather(width, heads, slices, own, norm)
        attention = MultiHeadSelfAttention(
            width, heads, query_bias=own.query, key_bias=own.key, output_bias=own.output, normalise=norm
        )
        mix: list[nn.Module] = [mlp()] if mix_channels else []
        self.mix = nn.Sequential(*mix, *([PreNorm(width, attention, norm), mlp()] if mix_slices else []))
        self.norm_slices = NORMS[norm](width)
        self.scatter = Scatter(width, heads, own, norm)
        self.mlp = mlp() if grid is None else PreNorm(width, ConvFeedForward(width, hidden, grid), norm)

    def forward(
        self, h: Features, mask: Mask | None = None, log_mass: Float[Tensor, "B N"] | None = None
    ) -> Features:
        points = self.norm_points(h)
        z = self.mix(self.gather(points, mask, log_mass).to(h.dtype))
        return self.mlp(h + self.scatter(points, self.norm_slices(z)))


def lrsa_needs(config: Any) -> tuple[str, ...]:
    return ("time",) * config.time + ("mass",) * config.mass


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published model; of the inputs of the lift only their number is known.

    By default as many coordinates are assumed as have room with all frequencies, up to three.
    """
    if "blocks.0.attn.slice_features" not in weights:
        return None
    frequencies = weights["embed_position.freqs"]
    width, features = weights["lifting.up.weight"].shape
    pairs = 2 * len(frequencies)
    coords = hints.get("coords", min(3, features // pairs))
    heads, slices, _ = weights["blocks.0.attn.slice_features"].shape
    low, high = float(frequencies[0]), float(frequencies[-1])  # stored as exponents
    biases = Biases(*(f"blocks.0.attn.{part}.bias" in weights for part in ("to_q_2", "to_k", "to_out")))
    return {
        "coords": coords,
        "inputs": features - coords * pairs,
        "outputs": len(weights["project.up.bias"]),
        "width": width,
        "depth": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        "heads": heads,
        "slices": slices,
        "mlp_ratio": len(weights["blocks.0.ffn.gate_proj.weight"]) / width,
        "gated": "blocks.0.ffn.up_proj.weight" in weights,
        "bias": next(name for name, known in BIASES.items() if known == biases),
        "mix_channels": "blocks.0.attn.channel_norm_1.weight" in weights,
        "mix_slices": "blocks.0.attn.sm_norm.weight" in weights,
        "fourier": Fourier(count=len(frequencies), low=low, high=high, raw=False),
    } | {name: hints[name] for name in ("norm",) if name in hints}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the frequencies, which are settings here, and number the layers among the slices."""
    names = ["mix_mlp_1", "mix_attention", "mix_mlp_2"]
    present = [name for name in names if f"blocks.0.{name}.norm.weight" in weights]
    order = {name: f"mix.{place}" for place, name in enumerate(present)}
    renamed = {}
    for name, tensor in weights.items():
        for layer, place in order.items():
            name = name.replace(f".{layer}.", f".{place}.")
        renamed[name] = tensor
    renamed.pop("embed_position.freqs", None)
    return renamed


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^lifting\.up\.", "lift.1."),
        (r"^project\.up\.", "head."),
        (r"\.attn_norm\.", ".norm_points."),
        (r"\.attn\.slice_features$", ".gather.latents"),
        (r"\.attn\.channel_norm_(\d)\.", r".mix_mlp_\1.norm."),
        (r"\.attn\.channel_mixing_(\d)\.", r".mix_mlp_\1.layer."),
        (r"\.attn\.sm_norm\.", ".mix_attention.norm."),
        (r"\.attn\.sm_", ".mix_attention.layer."),
        (r"\.attn\.(to_[qkv]|to_out|[qk]_norm)_2\.", r".scatter.\1."),
        (r"\.attn\.out_slice_norm\.", ".norm_slices."),
        (r"\.attn\.", ".gather."),
        (r"\.to_q\.", ".query."),
        (r"\.to_k\.", ".key."),
        (r"\.to_v\.", ".value."),
        (r"\.to_out\.", ".out."),
        (r"\.q_norm\.", ".norm_query."),
        (r"\.k_norm\.", ".norm_key."),
        (r"\.ffn_ln\.", ".mlp.norm."),
        (r"\.ffn\.", ".mlp.layer."),
        (r"\.gate_proj\.", ".inner."),
        (r"\.up_proj\.", ".gate."),
        (r"\.down_proj\.", ".outer."),
    ],
    hints=("coords", "norm"),
    convert=convert,
)


@model("lrsa", needs=lrsa_needs, published=(PUBLISHED,), family="latent attention")
class LRSA(PointOperator):
    """Low-rank spatial attention with a transformer block among the slices (Yang et al., 2026).

    Paper: https://arxiv.org/abs/2604.03582. One block maps the features h of N points to h'':

        Z   = O softmax_N(n(P) n(K ĥ)ᵀ/√D + log m) V ĥ              ĥ = norm h, P: M learned queries a head
        Z   ← Z + mlp(norm Z)                                      `mix_channels`
        Z   ← Z + attention(norm Z),  Z ← Z + mlp(norm Z)           `mix_slices`
        h'  = h + O' softmax_M(n(Q' ĥ) n(K' ẑ)ᵀ/√D) V' ẑ            ẑ = norm Z
        h'' = h' + mlp(norm h')                                    or convolution and MLP: `point_mlp`

    Norms are RMS norms (or layer norms), n those of queries and keys over each head. The lift is one linear
    map of Fourier features of the coordinates and the inputs, the head one linear map. The cost is O(N ·
    (slices + width) · width). Without both mixes what is left is LinearNO with normalised queries and keys.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads, each with its own learned queries.
        slices: M, the rank of the attention of each head (published names: latents, modes).
        mlp_ratio: hidden width of each MLP, in multiples of `width`; 8/3 is usual for gated ones.
        gated: gated MLPs, whose hidden width is rounded up to a multiple of 16.
        bias: maps with a bias: "none", "output" (attention outputs and MLPs), "no-query" (all but queries) or
            "all".
        point_mlp: "conv" puts a 3×3 convolution on the `grid` before the MLP of the points.
        mix_channels: whether an MLP acts on the gathered slices.
        mix_slices: whether self-attention and a second MLP act on the slices.
        norm: "rms", or "layer" for layer norms without a bias.
        fourier: frequencies of the sines and cosines of the coordinates; None: the coordinates alone.
        mass: whether the model takes quadrature weights of the points, as `forward(..., mass=(B, N, 1))`; the
            result then does not depend on where points are dense.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = LRSA(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
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
        mlp_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0,
        gated: bool = False,
        bias: BiasPlacement = "no-query",
        point_mlp: Literal["linear", "conv"] = "linear",
        mix_channels: bool = True,
        mix_slices: bool = True,
        norm: NormKind = "rms",
        fourier: Fourier | None = Fourier(),  # noqa: B008 - frozen
        mass: bool = False,
        grid: tuple[PositiveInt, ...] | None = None,
        time: bool = False,
    ):
        require_heads(width, heads)
        encoding = None if fourier is None else FourierFeatures(coords, fourier)
        features = coords + inputs
        lift = ExactLinear(features + (encoding.added if encoding else 0), width)
        self_grid = require_grid(grid) if point_mlp == "conv" else None

        def block() -> LrsaBlock:
            return LrsaBlock(
                width,
                heads,
                slices,
                hidden=hidden_width(width, mlp_ratio, gated),
                bias=bias,
                gated=gated,
                mix_channels=mix_channels,
                mix_slices=mix_slices,
                norm=norm,
                grid=self_grid,
            )

        super().__init__(
            features=features,
            lift=lift if encoding is None else nn.Sequential(encoding, lift),
            blocks=[block() for _ in range(depth)],
            head=ExactLinear(width, outputs),
            time=TimeEmbedding(width) if time else None,
        )
        self.mass = mass
        self.fixed_grid = self_grid
        self.grid_free_settings = "" if self_grid is None else "point_mlp=linear"
        self.apply(initialise)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        mass: Float[Tensor, "B N 1"] | None = None,
        segments: Segments | None = None,
    ) -> Output:
        if (mass is None) == self.mass:
            raise UserError(f"this model takes {'a' if self.mass else 'no'} mass of its points")
        if segments is not None and self.fixed_grid is not None:
            raise UserError("a model tied to a grid takes no packed meshes; build it with point_mlp=linear")
        weights = None if mass is None else log_mass(mass)
        return self.apply_blocks(coords, inputs, time=time, segments=segments, weights=weights)


def log_mass(mass: Float[Tensor, "B N 1"]) -> Float[Tensor, "B N"]:
    """log m, with m relative to the mean over all points; zero and negative weights count as 10⁻⁶."""
    mass = mass[..., 0]
    return (mass / mass.mean(dim=-1, keepdim=True)).clamp(min=MIN_MASS).log()


def hidden_width(width: int, ratio: float, gated: bool) -> int:
    """Hidden width of the MLPs."""
    hidden = round(ratio * width)
    if hidden < 1:
        raise ValueError(f"mlp_ratio={ratio}: no hidden features are left of width={width}")
    return hidden + -hidden % GATED_HIDDEN_MULTIPLE if gated else hidden


def initialise(module: nn.Module) -> None:
    """Linear maps and learned queries from a truncated N(0, 0.02²), biases 0: `model.apply(initialise)`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, Gather):
        nn.init.trunc_normal_(module.latents, std=0.02)
