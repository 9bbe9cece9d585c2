"""LinearNO: canonical linear attention between N points and M slices (arXiv 2511.06294)."""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import (
    Mlp,
    OneLinear,
    PointTransformer,
    ReferenceDistances,
    SelfAttention,
    SliceAttention,
    Temperature,
)
from linearno.nn.layers import make_stem
from linearno.nn.transformer import Placeholder, point_needs, require_grid
from linearno.ops import Phi, Psi


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published LinearNO; two variants have a temperature, misspelt in that for cars."""
    if published.published_family(weights) != "linearno":
        return None
    standard, car = (f"blocks.0.Attn.{word}_q" in weights for word in ("temperature", "tempreature"))
    airfrans = any(name.endswith(".Attn.temperature") for name in weights)
    found = published.infer_point_arguments(
        weights, hints, scores="to_q", irregular="grid", airfrans=airfrans
    )
    joined = (car or airfrans) and found["inputs"]  # published: all features are coordinates
    return found | {
        **({"placeholder": "always"} if joined else {}),
        "merge_layers": 2 if "blocks.0.Attn.to_out.2.weight" in weights else 1,
        "temperature": (0.01, 1.0) if standard else (0.1, 2.0) if car else None,
    }


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=published.LINEARNO_NAMES,
    hints=published.HINTS,
    unused=r"\.Attn\.temperature$",
    convert=published.convert,
)


@model("linearno", needs=point_needs, published=(PUBLISHED,), family="slice attention")
class LinearNO(PointTransformer):
    """Linear attention neural operator (Hu et al., 2026, https://arxiv.org/abs/2511.06294).

    Maps fields at N points to fields at the same points, for any N, in O(N · slices). Each block gathers the
    points into M slices and scatters them back, φ(Q) (ψ(K)ᵀ V), with φ a softmax over the slices and ψ a
    softmax over the points.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        slices: M, the rank of the attention kernel; 32 to 256.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        stem: features of the attention: "linear" at each point, or "conv", a 3×3 convolution on the `grid`.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of (or in addition to) the coordinates.
        temperature: bounds of the learned temperature of each head; None: no temperature.
        merge_layers: layers of the output projection of the attention.
        tied: one projection for φ and ψ (ablation of the generalisation step).
        mix: "attention" among the slices is the ablation of the simplification step.
        phi: dimension of the softmax of φ: slices "M" or points "N" (ablation).
        psi: normalisation of ψ: over points "N", over slices "M", "sum", or "phi" (ablations).
        placeholder: when a learned vector joins the lifted features: "without-inputs", or "always" as for
            AirfRANS and ShapeNet-Car, where the published code takes the inputs for coordinates.

    >>> model = LinearNO(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
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
        stem: Literal["linear", "conv"] = "linear",
        grid: tuple[PositiveInt, ...] | None = None,
        time: bool = False,
        unified: ReferenceDistances | None = None,
        temperature: tuple[float, float] | None = (0.01, 1.0),
        merge_layers: Literal[1, 2] = 1,
        tied: bool = False,
        mix: Literal["identity", "attention"] = "identity",
        phi: Phi = "M",
        psi: Psi = "N",
        placeholder: Placeholder = "without-inputs",
    ):
        if psi == "phi" and not tied:
            raise ValueError("psi='phi' is the softmax over N of φ: it needs tied=True")
        if temperature is not None and not 0 < temperature[0] <= temperature[1] < inf:
            raise ValueError(f"temperature={temperature}: expected two bounds, 0 < low <= high")
        head_width = width // heads

        def attention() -> SliceAttention:
            return SliceAttention(
                heads=heads,
                stem=make_stem(width, require_grid(grid) if stem == "conv" else None),
                merge=Mlp(width, width, width) if merge_layers == 2 else OneLinear(width, width),
                query=nn.Linear(head_width, slices, bias=False),
                key=None if tied else nn.Linear(head_width, slices, bias=False),
                value=nn.Linear(head_width, head_width, bias=False),
                mix=SelfAttention(head_width) if mix == "attention" else None,
                temperature_query=Temperature(heads, temperature) if temperature else None,
                temperature_key=Temperature(heads, temperature) if temperature and not tied else None,
                phi=phi,
                psi=psi,
            )

        super().__init__(
            coords=coords,
            inputs=inputs,
            outputs=outputs,
            width=width,
            depth=depth,
            heads=heads,
            mlp_ratio=mlp_ratio,
            grid=grid,
            time=time,
            unified=unified,
            attention=attention,
            placeholder=placeholder,
            init_conv=nn.init.kaiming_normal_,
        )
