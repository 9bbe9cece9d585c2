"""FactFormer (Li et al., NeurIPS 2023): attention along one axis of a grid after the other.

Axes: B batch, N points, X coordinates, C channels, W width.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn.config import ReferenceDistances
from linearno.nn.factorised_attention import FactorisedAttention
from linearno.nn.grid_operator import Append
from linearno.nn.latent_attention import Features, Mask, require_heads
from linearno.nn.library_transformer import LibraryTransformer, feed_forward, time_need
from linearno.nn.protocol import GRID_NEED


def factformer_needs(settings: Any) -> tuple[str, ...]:
    """A grid, and a time if the model takes one."""
    return (GRID_NEED, *time_need(settings))


class FactFormerBlock(nn.Module):
    """h + attention(norm h), then h + mlp(norm h)."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, grid: tuple[int, ...]):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = FactorisedAttention(width, heads, grid)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = feed_forward(width, mlp_ratio)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        h = h + self.attention(self.norm_attention(h))
        return h + self.mlp(self.norm_mlp(h))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of the library's FactFormer; shapes determine all but the grid."""
    if "blocks.0.Attn.attn_x.to_q.weight" not in weights:
        return None
    found = published.infer_library_arguments(weights, hints)
    return found | {"heads": found["width"] // len(weights["blocks.0.Attn.to_v.weight"])}


AXES = tuple(enumerate("xyz"))
PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *((rf"\.attn_{name}\.to_q\.", f".axes.{axis}.query.") for axis, name in AXES),
        *((rf"\.attn_{name}\.to_k\.", f".axes.{axis}.key.") for axis, name in AXES),
        *((rf"\.to_{name}\.\d\.", f".axes.{axis}.") for axis, name in AXES),
        (r"\.to_in\.", ".project."),
        (r"\.out_ffn\.norm\.", ".norm."),
        (r"\.out_ffn\.fn\.linear_pre\.0\.", ".mlp.input."),
        (r"\.out_ffn\.fn\.linears\.0\.0\.", ".mlp.hidden.0."),
        (r"\.out_ffn\.fn\.linear_post\.", ".mlp.output."),
        (r"\.to_v\.", ".value."),
        (r"\.to_out\.0\.", ".merge."),
        *published.LIBRARY_NAMES,
    ],
    hints=published.LIBRARY_HINTS,
)


@model("factformer", needs=factformer_needs, published=(PUBLISHED,), family="linear attention")
class FactFormer(LibraryTransformer):
    """FactFormer: attention along one axis of a grid after the other (Li et al., 2023).

    Paper: https://arxiv.org/abs/2305.17560. Each block adds attention and an MLP to the features h on a grid
    of two axes (of one or three likewise):

        s₁, s₂ = mlp₁(norm(P₁ mean₂ h)), mlp₂(norm(P₂ mean₁ h))      means over the other axis
        A₁, A₂ = softmax(Q₁ s₁ (K₁ s₁)ᵀ / √D), softmax(Q₂ s₂ (K₂ s₂)ᵀ / √D)
        h ← h + merge(A₂ (A₁ V h)),   h ← h + mlp(h)                 both of normalised h

    in the form of the Neural-Solver-Library (https://github.com/thuml/Neural-Solver-Library). A grid of
    N = R² points costs O(N R · width): less than the N² of attention over all points, more than N.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        grid: points along each axis of a structured mesh, points in C order.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.
        unified: distances to reference points in place of the coordinates.
        append: more features of a point: "grid", its position on the unit cube of the grid, or "coords", the
            coordinates once more, as in the library's scripts for pipe flow.

    >>> model = FactFormer(coords=2, inputs=1, outputs=1, grid=(85, 85))
    >>> u = model(coords, a)  # (B, 7225, 2), (B, 7225, 1) → (B, 7225, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        grid: tuple[int, ...] | None,
        width: PositiveInt = 128,
        depth: PositiveInt = 8,
        heads: PositiveInt = 8,
        mlp_ratio: PositiveInt = 2,
        time: bool = False,
        unified: ReferenceDistances | None = None,
        append: Append | None = None,
    ):
        require_heads(width, heads)
        if grid is None:
            raise ValueError("FactFormer attends along the axes of a grid: give it, such as grid=(85, 85)")
        super().__init__(
            coords=coords,
            inputs=inputs,
            outputs=outputs,
            width=width,
            blocks=[FactFormerBlock(width, heads, mlp_ratio, grid) for _ in range(depth)],
            time=time,
            grid=grid,
            unified=unified,
            append=append,
        )
        self.fixed_grid, self.grid_free_settings = grid, ""
