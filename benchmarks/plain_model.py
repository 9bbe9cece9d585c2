"""LinearNO as one writes it down from the paper: φ and ψ formed, values projected at all N points.

The yardstick of the speed benchmarks: none of this package's layers in it, nothing clever, nothing clumsy.
Axes: B batch, N points, H heads, D head width, M slices, W width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from linearno.core.errors import UserError
from linearno.nn import transformer as skeleton


def plain_attention(
    x: Float[Tensor, "B N H D"],
    w_query: Float[Tensor, "D M"],
    w_key: Float[Tensor, "D M"],
    w_value: Float[Tensor, "D D"],
    scale_query: Float[Tensor, "H"],
    scale_key: Float[Tensor, "H"],
) -> Float[Tensor, "B N H D"]:
    """φ(Q) ψ(K)ᵀ V, as three products and two softmaxes."""
    x = x.transpose(1, 2)  # B H N D
    w_query, w_key, w_value = (weight.to(x.dtype) for weight in (w_query, w_key, w_value))
    phi = F.softmax((x @ w_query) * scale_query[:, None, None], dim=-1).to(x.dtype)
    psi = F.softmax((x @ w_key) * scale_key[:, None, None], dim=-2).to(x.dtype)
    slices = torch.einsum("bhnm,bhnd->bhmd", psi, x @ w_value)
    return torch.einsum("bhnm,bhmd->bhnd", phi, slices).transpose(1, 2)


class Attention(nn.Module):
    """On a grid the features come from a 3×3 convolution, elsewhere from a linear layer."""

    def __init__(
        self,
        width: int,
        heads: int,
        slices: int,
        *,
        grid: tuple[int, ...] | None,
        clamp: tuple[float, float] | None,
        merge_layers: int,
    ):
        super().__init__()
        self.heads, self.grid, self.clamp = heads, grid, clamp
        if clamp is not None:
            self.temperature_q = nn.Parameter(torch.full((1, heads, 1, 1), 0.5))
            self.temperature_k = nn.Parameter(torch.full((1, heads, 1, 1), 0.5))
        self.stem = nn.Linear(width, width) if grid is None else nn.Conv2d(width, width, 3, padding=1)
        self.to_q = nn.Linear(width // heads, slices, bias=False)
        self.to_k = nn.Linear(width // heads, slices, bias=False)
        self.to_v = nn.Linear(width // heads, width // heads, bias=False)
        self.to_out: nn.Module = nn.Linear(width, width)
        if merge_layers == 2:
            self.to_out = nn.Sequential(self.to_out, nn.GELU(), nn.Linear(width, width))

    def forward(self, h: Tensor) -> Tensor:
        batch, points, width = h.shape
        x = self.stem(h) if self.grid is None else self._convolve(h, self.grid)
        x = x.reshape(batch, points, self.heads, -1).permute(0, 2, 1, 3).contiguous()  # B H N D
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        if self.clamp is not None:
            q = q / self.temperature_q.clamp(*self.clamp)
            k = k / self.temperature_k.clamp(*self.clamp)
        slices = torch.einsum("bhnm,bhnd->bhmd", F.softmax(k, dim=-2), v)
        out = torch.einsum("bhnm,bhmd->bhnd", F.softmax(q, dim=-1), slices)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(batch, points, width))

    def _convolve(self, h: Tensor, grid: tuple[int, ...]) -> Tensor:
        image = h.reshape(len(h), *grid, -1).permute(0, 3, 1, 2).contiguous()
        return self.stem(image).permute(0, 2, 3, 1).contiguous()


class Block(nn.Module):
    def __init__(self, width: int, mlp_ratio: int, attention: Attention):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        hidden = mlp_ratio * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attention(self.norm_1(h))
        return h + self.mlp(self.norm_2(h))


class PlainLinearNO(nn.Module):
    """With a convolutional stem on `grid`, or a linear one where it is None.

    `clamp` bounds the temperatures (None: there are none); `distances` to reference points (N, R) take the
    place of the coordinates where they are given.
    """

    distances: Tensor | None

    def __init__(
        self,
        *,
        features: int,
        outputs: int = 1,
        width: int,
        depth: int,
        heads: int,
        slices: int,
        mlp_ratio: int = 1,
        grid: tuple[int, ...] | None = None,
        clamp: tuple[float, float] | None = (0.01, 1.0),
        merge_layers: int = 2,
        distances: Tensor | None = None,
    ):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.blocks = nn.ModuleList(
            Block(
                width,
                mlp_ratio,
                Attention(width, heads, slices, grid=grid, clamp=clamp, merge_layers=merge_layers),
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)
        self.placeholder = nn.Parameter(torch.rand(width) / width)
        self.register_buffer("distances", distances)

    def forward(self, coords: Tensor, inputs: Tensor | None = None) -> Tensor:
        place = coords if self.distances is None else self.distances.expand(len(coords), -1, -1)
        h = self.lift(place if inputs is None else torch.cat([place, inputs], dim=-1))
        h = h + self.placeholder if inputs is None else h
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def plain_twin(model: Any) -> PlainLinearNO:
    """The write-up of a LinearNO of this package, with the same settings, weights and device."""
    cfg, unified, points = model.config, model.unified, model.grid_points
    if cfg.name != "linearno" or cfg.tied or cfg.mix != "identity":
        raise UserError(f"the plain write-up is of the published LinearNO, not of {cfg}")
    plain = PlainLinearNO(
        features=model.features,
        outputs=model.sizes["outputs"],
        width=cfg.width,
        depth=cfg.depth,
        heads=cfg.heads,
        slices=cfg.slices,
        mlp_ratio=cfg.mlp_ratio,
        grid=cfg.grid if cfg.stem == "conv" else None,
        clamp=cfg.temperature,
        merge_layers=cfg.merge_layers,
        distances=None if unified is None or points is None else unified(points),
    )
    for theirs, weight in zip(plain.parameters(), same_order(model), strict=True):
        theirs.data = weight.detach().clone().view_as(theirs)
    return plain.to(model.placeholder.device)


def same_order(model: Any) -> Iterator[nn.Parameter]:
    """Our parameters in the order in which the write-up declares its own."""
    yield model.placeholder
    yield from model.lift.parameters()
    for block in model.blocks:
        assert isinstance(block, skeleton.Block)
        yield from block.norm_attention.parameters()
        yield from block.norm_mlp.parameters()
        of = block.attention
        scores = (of.temperature_query, of.temperature_key, of.stem, of.query, of.key)
        for part in (*scores, of.value, of.merge, block.mlp):
            yield from () if part is None else part.parameters()
    yield from model.norm.parameters()
    yield from model.head.parameters()
