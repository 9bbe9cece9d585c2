"""Cross-LinearNO: a field from observations at other points (arXiv 2511.06294, appendix E).

Axes: B batch, K observations, N query points, X coordinates, C channels, H heads, M slices.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.models import published_transformer as published
from linearno.models.registry import PublishedFormat, model
from linearno.nn import Linear, Mlp, SliceAttention, Transformer
from linearno.nn.layers import add_norm, pointwise
from linearno.nn.observations import (
    Observed,
    Output,
    Points,
    Values,
    require_observations,
    require_points,
)
from linearno.nn.transformer import Block
from linearno.ops import State
from linearno.ops.layers import Residual, initial_stream


class CrossBlock(Block):
    """Block that gathers the state at the observations and scatters it to the query points."""

    def gather(self, stream: Residual) -> State:
        """Gather the observations. As in the published block, they pass the norm of its MLP."""
        return self.attention.gather(add_norm(self.norm_mlp, stream)[1])


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a published Cross-LinearNO: shapes determine all of them."""
    if published.published_family(weights) != "cross-linearno":
        return None
    return published.infer_settings(weights, "to_q") | {
        "coords": weights["query_MLP.linear_pre.0.weight"].shape[1],
        "inputs": weights["preprocess.linear_pre.0.weight"].shape[1],
        "outputs": len(weights["mlp2.bias"]),
    }


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        *published.LINEARNO_NAMES,
        (r"^query_MLP\.linear_pre\.0\.", "place.0."),
        (r"^query_MLP\.linear_post\.", "place.2."),
        (r"^cross_block\.", "cross."),
        (r"\.in_project_y\.", ".key_stem."),
        (r"^ln\.", "norm."),
        (r"^mlp2\.", "head."),
    ],
    convert=published.convert,
)


@model("cross-linearno", needs=("points",), published=(PUBLISHED,), family="reconstruction")
class CrossLinearNO(Transformer):
    """Cross-LinearNO: a field at any points from observations at others (Hu et al., 2026, appendix E).

    The defaults are those of the published code. Weights have PyTorch's initialisation: with the small
    weights of the other models of the family (deviation 0.02) all slices start alike and training stalls.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of observed channels; 1 or more.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks on the observations, before the cross-attention.
        heads: attention heads.
        slices: M, the rank of the attention kernel.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.

    >>> model = CrossLinearNO(coords=2, inputs=1, outputs=1)
    >>> state = model.encode(coords, u)  # (B, K, 2), (B, K, 1) → H·M·(D + 2) numbers a sample, for any K
    >>> model.query(points, state)  # (B, N, 2) → (B, N, 1)
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        width: PositiveInt = 96,
        depth: PositiveInt = 4,
        heads: PositiveInt = 8,
        slices: PositiveInt = 48,
        mlp_ratio: PositiveInt = 3,
    ):
        if inputs < 1:
            raise ValueError(
                "Cross-LinearNO reconstructs a field from observations: it needs inputs=1 or more"
            )
        super().__init__(
            coords=coords, inputs=inputs, outputs=outputs, width=width, heads=heads, mlp_ratio=mlp_ratio
        )

        def attention(key_stem: nn.Module | None = None) -> SliceAttention:
            head_width = width // heads
            return SliceAttention(
                heads=heads,
                stem=Linear(width, width),
                key_stem=key_stem,
                merge=Mlp(width, width, width),
                query=nn.Linear(head_width, slices, bias=False),
                key=nn.Linear(head_width, slices, bias=False),
                value=nn.Linear(head_width, head_width, bias=False),
            )

        self.lift = Mlp(inputs, 2 * width, width, exact=True)
        self.place = Mlp(coords, 2 * width, width, exact=True)  # of observations and of query points
        self.blocks = nn.ModuleList(Block(width, mlp_ratio, attention()) for _ in range(depth))
        self.cross = CrossBlock(width, mlp_ratio, attention(key_stem=Linear(width, width)))
        self.norm = nn.LayerNorm(width)
        self.head = Linear(width, outputs)

    def forward(self, coords: Observed, inputs: Values, *, points: Points | None = None) -> Output:
        """Predict the field at `points`, by default at the observations."""
        return self.query(coords if points is None else points, self.encode(coords, inputs))

    def encode(self, coords: Observed, inputs: Values) -> State:
        """Encode the observations into a state, all that `query` needs."""
        stream = self._observe(coords, inputs)
        for block in self.blocks:
            stream, _ = self._run(block, stream)
        return self.cross.gather(stream)

    def query(self, points: Points, state: State) -> Output:
        """Predict the field at any points, point by point."""
        require_points(points, self.sizes["coords"], state.value)
        return self._head(self._run(self.cross, Residual(self._place(points)), state)[0])

    def slice_weights(
        self, coords: Observed, inputs: Values, *, points: Points | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and ψ (B, H, K, M) of each block, then of the cross-attention: φ (B, H, N, M) at `points`."""
        stream = self._observe(coords, inputs)
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention.weights(add_norm(block.norm_attention, stream)[1])
            stream, _ = block(stream)
        queries = Residual(self._place(coords if points is None else points))
        gathered = add_norm(self.cross.norm_mlp, stream)[1]
        yield self.cross.attention.weights(add_norm(self.cross.norm_attention, queries)[1], gathered)

    def _observe(self, coords: Tensor, inputs: Tensor) -> Residual:
        require_observations(coords, inputs, self.sizes["coords"], self.sizes["inputs"])
        _require_finite("observations", "values", inputs)
        return Residual(self._place(coords), pending=pointwise(self.lift, inputs))

    def _place(self, points: Tensor) -> Tensor:
        _require_finite("points", "coordinates", points)
        return initial_stream(pointwise(self.place, points), points)


def _require_finite(what: str, part: str, numbers: Tensor) -> None:
    """Refuse NaN and infinite numbers, except in compiled or captured steps, which cannot look."""
    if torch.compiler.is_compiling() or (numbers.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    bad = int((~numbers.isfinite()).any(dim=-1).sum())
    if bad:
        raise UserError(f"{bad} {what} have {part} that are NaN or infinite; leave them out")
