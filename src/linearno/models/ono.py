"""ONO (Xiao et al., ICML 2024): a kernel of orthonormal features that attention learns.

Axes: B batch, N points, X coordinates, C channels, F features, K eigenfunctions, W width, V = 2 W.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import ReferenceDistances
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.grid_operator import PointFeatures
from linearno.nn.latent_attention import ExactLinear, Features, Mask, require_heads
from linearno.nn.library_transformer import (
    PositionLift,
    feed_forward,
    lift_mlp,
    refuse_packed,
    time_need,
)
from linearno.nn.linear_attention import LinearAttention
from linearno.nn.nystrom_attention import LandmarkScale, NystromAttention
from linearno.nn.point_operator import Coords, Inputs, Output, PointOperator, Time
from linearno.nn.transformer import initialise
from linearno.nn.whitening import Matrix, Whitening, inverse_factor
from linearno.ops import Segments

Solution = Float[Tensor, "B N C"]


class OnoBlock(nn.Module):
    """Features x attend to each other; the solution f is mixed by the kernel of their orthonormal projection.

        x ← x + attention(norm x),   x ← x + mlp(norm x)
        φ = (P x) L⁻ᵀ with mean φ φᵀ = 1,   f ← out(norm(f + φ diag(softplus μ) Σₙ φₙᵀ fₙ))

    Args:
        width: W.
        attention: (x, mask) → x.
        mlp_ratio: hidden width of the MLP, in multiples of W.
        eigenfunctions: K.
        out: W → channels of the solution after the block.
    """

    def __init__(self, width: int, attention: nn.Module, mlp_ratio: int, eigenfunctions: int, out: nn.Module):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = feed_forward(width, mlp_ratio)
        self.project = nn.Linear(width, eigenfunctions)
        self.whitening = Whitening(eigenfunctions)
        self.raw_eigenvalues = nn.Parameter(torch.zeros(eigenfunctions))  # μ
        self.norm_out = nn.LayerNorm(width)
        self.out = out

    def forward(
        self, x: Features, f: Features, mask: Mask | None = None
    ) -> tuple[Features, Solution, Matrix | None]:
        """Both streams and, in training, the covariance for `whitening.update`."""
        x = x + self.attention(self.norm_attention(x), mask=mask)
        x = x + self.mlp(self.norm_mlp(x))
        phi, covariance = self.whitening(self.project(x), mask)
        kept = phi if mask is None else phi * mask.unsqueeze(-1)
        f = f + (phi * softplus(self.raw_eigenvalues)) @ (kept.mT @ f)
        return x, self.out(self.norm_out(f)).to(x.dtype), covariance


class TwoLifts(nn.Module):
    """[features(z), solution(z)], two MLPs of their own for the two streams."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.features, self.solution = lift_mlp(channels, width), lift_mlp(channels, width)

    def forward(self, z: Float[Tensor, "B N F"]) -> Float[Tensor, "B N V"]:
        return torch.cat([self.features(z), self.solution(z)], dim=-1)


class SolutionTime(TimeEmbedding):
    """[0, E(t)]: the time joins the solution alone."""

    def forward(self, time: Float[Tensor, "B 1"]) -> Float[Tensor, "B 1 V"]:
        embedded = super().forward(time)
        return pad(embedded, (embedded.shape[-1], 0))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the library's ONO; shapes determine all but the heads and the form of linear attention."""
    if "blocks.0.mu" not in weights or "preprocess_x.linear_pre.0.weight" not in weights:
        return None
    found = published.infer_library_arguments(weights, hints, lift="preprocess_z")
    found["eigenfunctions"] = len(weights["blocks.0.mu"])
    if "blocks.0.Attn.res_conv.weight" in weights:
        heads = len(weights["blocks.0.Attn.res_conv.weight"])
        scale = hints.get("landmark_scale", "batch")
        return found | {"attention": "nystrom", "heads": heads, "landmark_scale": scale}
    return found | {"attention": "efficient" if "blocks.0.Attn.to_q.weight" in weights else "galerkin"}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Complete the running covariances, which are published without their factors, or not at all."""
    weights = dict(weights)
    for name in [name for name in weights if name.endswith(".raw_eigenvalues")]:
        own = name.replace("raw_eigenvalues", "whitening.")
        fresh = Whitening(len(weights[name])).state_dict()
        if (covariance := weights.get(f"{own}covariance")) is not None:
            jitters = Whitening(len(covariance)).jitters
            fresh |= {"covariance": covariance, "inverse_factor": inverse_factor(covariance, jitters)}
            fresh["batches"] = torch.tensor(1)
        weights |= {f"{own}{part}": value for part, value in fresh.items()}
    return weights


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *(
            (rf"^preprocess_{old}\.{old_layer}\.", f"lift.network.{new}.{layer}.")
            for old, new in (("x", "features"), ("z", "solution"))
            for old_layer, layer in ((r"linear_pre\.0", 0), ("linear_post", 2))
        ),
        (r"^time_fc\.", "time.network."),
        (r"\.ln_1\.", ".norm_attention."),
        (r"\.ln_2\.", ".norm_mlp."),
        (r"\.ln_3\.", ".norm_out."),
        (r"\.mu$", ".raw_eigenvalues"),
        (r"\.feature_cov$", ".whitening.covariance"),
        (r"^(blocks\.\d+)\.proj\.", r"\1.project."),
        (r"\.mlp2\.", ".out."),
        (r"\.linear_pre\.0\.", ".0."),
        (r"\.linear_post\.", ".2."),
        (r"\.Attn\.to_qkv\.", ".attention.query_key_value."),
        (r"\.Attn\.res_conv\.", ".attention.convolution."),
        (r"\.Attn\.to_q\.", ".attention.query."),
        (r"\.Attn\.to_k\.", ".attention.key."),
        (r"\.Attn\.to_v\.", ".attention.value."),
        (r"\.Attn\.(?:to_out\.0|to_out|proj)\.", ".attention.merge."),
        (r"\.Attn\.", ".attention."),
    ],
    hints=(*published.LIBRARY_HINTS, "landmark_scale"),
    convert=convert,
)


@model("ono", needs=time_need, published=(PUBLISHED,), family="linear attention")
class ONO(PointOperator):
    """Orthogonal neural operator: a kernel of orthonormal features (Xiao et al., 2024).

    Paper: https://arxiv.org/abs/2310.12487. Two streams come from coordinates and inputs: features x, which
    attend to each other, and the solution f, which a kernel of K learned eigenfunctions mixes in each block:

        x ← x + attention(norm x),   x ← x + mlp(norm x)
        Σ = L Lᵀ = mean of (P x) (P x)ᵀ,   φ = (P x) L⁻ᵀ
        f ← out(norm(f + φ diag(softplus μ) Σₙ φₙᵀ fₙ))           out: an MLP, a linear map in the last block

    Σ is the mean over the points of a batch in training, in evaluation a running mean (`Whitening`). Where
    processes share a batch, each has the mean over its part. In the form of the Neural-Solver-Library
    (https://github.com/thuml/Neural-Solver-Library), where the default sizes come from, each stream has a
    lift of its own; in the original one (https://github.com/zhijie-group/Orthogonal-Neural-operator) one MLP
    lifts both. The cost is O(N · width · (width + landmarks)).

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W of each stream; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of each MLP in a block, in multiples of `width`.
        eigenfunctions: K, the rank of the kernel of a block.
        attention: "nystrom" through landmarks (`NystromAttention`), which depends on the order of the points,
            or a form of `LinearAttention`: "efficient", as the published results on Navier–Stokes, "galerkin"
            or "normalised".
        landmarks: of Nyström attention.
        landmark_scale: the pseudoinverse of Nyström attention starts from the largest sum of each "sample",
            or of the "batch" as published, so that a prediction depends on the others of its batch;
            `from_published` reads weights so unless it is given "sample".
        form: "library", or "original" with one lift for both streams.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        append: "coords" gives the coordinates to the lifts twice, as the library's scripts for pipe flow do.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        unified: distances to reference points in place of the coordinates.

    >>> model = ONO(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4)
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
        eigenfunctions: PositiveInt = 16,
        attention: Literal["nystrom", "efficient", "galerkin", "normalised"] = "nystrom",
        landmarks: PositiveInt = 256,
        landmark_scale: LandmarkScale = "sample",
        form: Literal["library", "original"] = "library",
        time: bool = False,
        append: Literal["coords"] | None = None,
        grid: tuple[PositiveInt, ...] | None = None,
        unified: ReferenceDistances | None = None,
    ):
        require_heads(width, heads)
        features = PointFeatures(coords, inputs, grid, unified, append)
        channels = features.channels

        def block(out: nn.Module) -> OnoBlock:
            mixing: nn.Module
            if attention == "nystrom":
                mixing = NystromAttention(width, heads, landmarks, landmark_scale)
            else:
                mixing = LinearAttention(width, heads, attention, bias=attention != "efficient")
            return OnoBlock(width, mixing, mlp_ratio, eigenfunctions, out)

        outs = [feed_forward(width, mlp_ratio) for _ in range(depth - 1)]
        lift = TwoLifts(channels, width) if form == "library" else both_streams(channels, width)
        super().__init__(
            features=coords + inputs,
            lift=PositionLift(coords, features, lift),
            blocks=[block(out) for out in (*outs, ExactLinear(width, outputs))],
            head=nn.Identity(),
            time=SolutionTime(width) if time else None,
        )
        self.grid_free_settings = features.grid_free_settings
        self.fixed_grid = grid if self.grid_free_settings else None
        self.apply(initialise)
        self.placeholder = nn.Parameter(torch.rand(width) / width)

    @property
    def capturable(self) -> bool:
        """A factorisation on the device may wait for the host, which a CUDA graph cannot."""
        return False

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        refuse_packed(segments, self.fixed_grid, self.grid_free_settings)
        shift = pad(self.placeholder, (len(self.placeholder), 0))
        return self.apply_blocks(coords, inputs, time=time, segments=segments, shift=shift)

    def _run_blocks(self, h: Tensor, *extra: Tensor | None) -> Tensor:
        x, f = h.chunk(2, dim=-1)
        for block in self.blocks:
            assert isinstance(block, OnoBlock)
            x, f, covariance = self._run_block(block, x, f, *extra)
            if covariance is not None:
                block.whitening.update(covariance)
        return f


def both_streams(channels: int, width: int) -> nn.Sequential:
    """One MLP with a hidden width of 2W for both streams."""
    return nn.Sequential(ExactLinear(channels, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 * width))
