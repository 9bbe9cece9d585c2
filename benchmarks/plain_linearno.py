"""LinearNO as one writes it down from the paper: φ and ψ formed, values projected at all N points.

The yardstick of the speed benchmarks: nothing of this package in it, nothing clever, nothing clumsy.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, slices: int, grid: tuple[int, int]):
        super().__init__()
        self.heads, self.grid = heads, grid
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.to_q = nn.Linear(width // heads, slices, bias=False)
        self.to_k = nn.Linear(width // heads, slices, bias=False)
        self.to_v = nn.Linear(width // heads, width // heads, bias=False)
        self.temperature_q = nn.Parameter(torch.full((1, heads, 1, 1), 0.5))
        self.temperature_k = nn.Parameter(torch.full((1, heads, 1, 1), 0.5))
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, h: Tensor) -> Tensor:
        batch, points, width = h.shape
        image = h.reshape(batch, *self.grid, width).permute(0, 3, 1, 2).contiguous()
        x = self.conv(image).permute(0, 2, 3, 1).contiguous().reshape(batch, points, self.heads, -1)
        x = x.permute(0, 2, 1, 3).contiguous()  # B H N D
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        phi = F.softmax(q / self.temperature_q.clamp(0.01, 1), dim=-1)
        psi = F.softmax(k / self.temperature_k.clamp(0.01, 1), dim=-2)
        slices = torch.einsum("bhnm,bhnd->bhmd", psi, v)
        out = torch.einsum("bhnm,bhmd->bhnd", phi, slices)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(batch, points, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, slices: int, grid: tuple[int, int]):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, slices, grid)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attention(self.norm_1(h))
        return h + self.mlp(self.norm_2(h))


class PlainLinearNO(nn.Module):
    def __init__(
        self, *, features: int, width: int, depth: int, heads: int, slices: int, grid: tuple[int, int]
    ):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.blocks = nn.ModuleList(Block(width, heads, slices, grid) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, coords: Tensor, inputs: Tensor) -> Tensor:
        h = self.lift(torch.cat([coords, inputs], dim=-1))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))
