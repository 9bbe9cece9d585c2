"""Transolver (Wu et al., ICML 2024): linear attention with tied projections, sum-norm and slice attention."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import (
    OneLinear,
    PointTransformer,
    ReferenceDistances,
    SelfAttention,
    SliceAttention,
    Temperature,
)
from linearno.nn.layers import make_stem
from linearno.nn.transformer import Placeholder, point_needs, require_grid

TEMPERATURE_BOUNDS = (0.1, 5.0)  # on structured meshes only
SUM_NORM_EPS = 1e-5  # added to the denominator of the sum-norm


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published Transolver."""
    if published.published_family(weights) != "transolver":
        return None
    airfrans = any(".mlp_new." in name for name in weights)
    found = published.infer_point_arguments(
        weights, hints, scores="in_project_slice", irregular="coords", airfrans=airfrans
    )
    return found | {name: hints[name] for name in ("placeholder",) if name in hints}


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.NAMES,
        (r"\.in_project_slice\.", ".query."),
        (r"\.temperature$", ".temperature_query.value"),
        (r"\.to_q\.", ".mix.query."),
        (r"\.to_k\.", ".mix.key."),
        (r"\.to_v\.", ".mix.value."),
    ],
    hints=(*published.HINTS, "placeholder"),
    unused=r"\.mlp_new\.",
    convert=published.convert,
)


@model("transolver", needs=point_needs, published=(PUBLISHED,), family="slice attention")
class Transolver(PointTransformer):
    """Physics-Attention, a special case of linear attention (Wu et al., 2024, https://arxiv.org/abs/2402.02366).

    On a structured mesh (`stem="conv"`, 2-D or 3-D) the temperature is bounded and the placeholder joins only
    without inputs; on an irregular one it is free and the placeholder always joins.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        slices: M, the number of slices (physical states).
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        stem: features of the attention: "linear" at each point, or "conv", a 3×3 convolution on the `grid`.
        grid: (rows, columns[, layers]) of a structured mesh, points in C order; taken from the data if None.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of (or in addition to) the coordinates.
        mix: "identity" leaves out the attention among the slices (ablation).
        placeholder: when a learned vector joins the lifted features: "always" or "without-inputs"; None: as
            published, always with `stem="linear"`. The Neural-Solver-Library has it always.

    >>> model = Transolver(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
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
        mix: Literal["attention", "identity"] = "attention",
        placeholder: Placeholder | None = None,
    ):
        head_width = width // heads

        def attention() -> SliceAttention:
            conv_grid = require_grid(grid) if stem == "conv" else None
            return SliceAttention(
                heads=heads,
                stem=make_stem(width, conv_grid),
                value_stem=make_stem(width, conv_grid),
                merge=OneLinear(width, width),
                query=nn.Linear(head_width, slices),
                mix=SelfAttention(head_width) if mix == "attention" else None,
                temperature_query=Temperature(heads, None if conv_grid is None else TEMPERATURE_BOUNDS),
                psi="sum",
                eps=SUM_NORM_EPS,
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
            placeholder=placeholder or ("always" if stem == "linear" else "without-inputs"),
        )
