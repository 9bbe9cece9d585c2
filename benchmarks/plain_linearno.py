"""LinearNO as one writes it down from the paper: φ and ψ formed, values projected at all N points.

The yardstick of the speed benchmarks. It takes the weights of our model and must agree with it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linearno import LinearNO


class PlainAttention(nn.Module):
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


class PlainLinearNO(nn.Module):
    def __init__(self, like: LinearNO):
        super().__init__()
        cfg = like.config
        self.lift, self.norm, self.head = like.lift, like.norm, like.head
        self.blocks = nn.ModuleList()
        for block in like.blocks:
            attention = PlainAttention(cfg.width, cfg.heads, cfg.slices, cfg.grid)
            ours = block.attention
            attention.conv, attention.to_out = ours.stem.conv, ours.merge
            attention.to_q, attention.to_k, attention.to_v = ours.query, ours.key, ours.value
            attention.temperature_q.data = ours.temperature_query.value.data.view(1, -1, 1, 1)
            attention.temperature_k.data = ours.temperature_key.value.data.view(1, -1, 1, 1)
            self.blocks.append(nn.ModuleList([block.norm_attention, attention, block.norm_mlp, block.mlp]))

    def forward(self, coords: Tensor, inputs: Tensor) -> Tensor:
        h = self.lift(torch.cat([coords, inputs], dim=-1))
        for norm_attention, attention, norm_mlp, mlp in self.blocks:
            h = h + attention(norm_attention(h))
            h = h + mlp(norm_mlp(h))
        return self.head(self.norm(h))
