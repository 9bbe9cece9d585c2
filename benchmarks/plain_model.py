"""Plain PyTorch implementation of LinearNO, the baseline of the speed benchmarks.

Written from the paper without layers or kernels of this package: φ and ψ are formed, and values are projected
at all N points.
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
    """φ(Q) ψ(K)ᵀ V, as matrix products and two softmaxes."""
    x = x.transpose(1, 2)  # B H N D
    w_query, w_key, w_value = (weight.to(x.dtype) for weight in (w_query, w_key, w_value))
    phi = F.softmax((x @ w_query) * scale_query[:, None, None], dim=-1).to(x.dtype)
    psi = F.softmax((x @ w_key) * scale_key[:, None, None], dim=-2).to(x.dtype)
    slices = torch.einsum("bhnm,bhnd->bhmd", psi, x @ w_value)
    return torch.einsum("bhnm,bhmd->bhnd", phi, slices).transpose(1, 2)


class Attention(nn.Module):
    """Linear attention with a 3×3 convolution (on a grid) or a linear layer as input projection."""

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
    """Pre-norm transformer block."""

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
    """LinearNO in plain PyTorch.

    Args:
        features: channels of coordinates (or distances) and inputs.
        outputs: number of predicted channels.
        width: feature width W.
        depth: number of blocks.
        heads: attention heads H.
        slices: number of slices M.
        mlp_ratio: hidden width of the MLP over W.
        grid: shape of the structured grid, for a convolutional input projection; None for a linear one.
        clamp: bounds of the temperatures; None for no temperatures.
        merge_layers: layers of the output projection, 1 or 2.
        distances: distances to reference points (N, R), which replace the coordinates.
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
        positions = coords if self.distances is None else self.distances.expand(len(coords), -1, -1)
        h = self.lift(positions if inputs is None else torch.cat([positions, inputs], dim=-1))
        h = h + self.placeholder if inputs is None else h
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def plain_twin(model: Any) -> PlainLinearNO:
    """Plain implementation of a LinearNO of this package, with the same settings, weights and device."""
    cfg, unified, points = model.config, model.unified, model.grid_points
    if cfg.name != "linearno" or cfg.tied or cfg.mix != "identity":
        raise UserError(f"expected the published LinearNO (neither tied nor mix), got {cfg}")
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
    for parameter, weight in zip(plain.parameters(), parameters_in_plain_order(model), strict=True):
        parameter.data = weight.detach().clone().view_as(parameter)
    return plain.to(model.placeholder.device)


def parameters_in_plain_order(model: Any) -> Iterator[nn.Parameter]:
    """Parameters of a LinearNO of this package in the order of `PlainLinearNO.parameters()`."""
    yield model.placeholder
    yield from model.lift.parameters()
    for block in model.blocks:
        assert isinstance(block, skeleton.Block)
        yield from block.norm_attention.parameters()
        yield from block.norm_mlp.parameters()
        attention = block.attention
        temperatures = attention.temperature_query, attention.temperature_key
        layers = attention.stem, attention.query, attention.key, attention.value, attention.merge
        for part in (*temperatures, *layers, block.mlp):
            yield from () if part is None else part.parameters()
    yield from model.norm.parameters()
    yield from model.head.parameters()
