"""Embeddings of positions and time. Axes: B batch, N points, X coordinates, R references, W width."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn


class UnifiedPosition(nn.Module):
    """Distances from each point to a regular grid of reference points.

    Args:
        ref: reference points per axis; R is their total number.
        box: bounds of the grid, one pair per axis.
    """

    references: Tensor

    def __init__(self, ref: int, box: tuple[tuple[float, float], ...]):
        super().__init__()
        axes = [torch.linspace(low, high, ref) for low, high in box]
        self.register_buffer("references", torch.cartesian_prod(*axes), persistent=False)

    @property
    def features(self) -> int:
        return len(self.references)

    def forward(self, points: Float[Tensor, "*B N X"]) -> Float[Tensor, "*B N R"]:
        # differences, not products: a distance of zero stays zero, and so does its gradient
        kind = torch.promote_types(points.dtype, torch.float32)  # PyTorch has no distances of half precision
        references = self.references.to(kind)
        found = torch.cdist(points.to(kind), references, compute_mode="donot_use_mm_for_euclid_dist")
        return found.to(points.dtype)


def unit_grid(grid: tuple[int, ...]) -> Float[Tensor, "N X"]:
    """The points of a grid on the unit cube, in C order."""
    return torch.cartesian_prod(*(torch.linspace(0, 1, size) for size in grid)).reshape(-1, len(grid))


class TimeEmbedding(nn.Module):
    """E(t) = [cos tω, sin tω] with ω_j = 10000^(−2j/W), and a zero if W is odd, through a small network."""

    frequencies: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.width, half = width, width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.network = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Float[Tensor, "B 1"]) -> Float[Tensor, "B 1 W"]:
        angles = time.unsqueeze(-1) * self.frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.network(nn.functional.pad(waves, (0, self.width % 2)))


class FourierFeatures(nn.Module):
    """[sin 2πxB, cos 2πxB] with random directions B ~ N(0, scale²) that are drawn once and not trained.

    Args:
        coords: number of coordinates X.
        features: F, an even number.
        scale: standard deviation of the directions.
    """

    directions: Tensor

    def __init__(self, coords: int, features: int, scale: float):
        super().__init__()
        self.register_buffer("directions", scale * torch.randn(coords, features // 2))

    def forward(self, points: Float[Tensor, "*B N X"]) -> Float[Tensor, "*B N F"]:
        # a sum of products, not a matrix product: exact under autocast and without TF32
        phases = 2 * math.pi * (points.unsqueeze(-1) * self.directions).sum(dim=-2)
        return torch.cat([phases.sin(), phases.cos()], dim=-1)


WaveKind = Literal["transformer", "nerf"]


class CoordinateWaves(nn.Module):
    """Sine and cosine of each coordinate at fixed frequencies: [sin ω₀ x₁, cos ω₀ x₁, sin ω₁ x₁, …].

    ω_k = 10000^(−2k/F) of "transformer", or 2^k π of "nerf", for k = 0 … F − 1.

    Args:
        coords: number of coordinates X.
        frequencies: F.
        kind: which frequencies.
    """

    frequencies: Tensor

    def __init__(self, coords: int, frequencies: int, kind: WaveKind):
        super().__init__()
        k = torch.arange(frequencies, dtype=torch.float64)
        found = 10000 ** (-2 * k / frequencies) if kind == "transformer" else math.pi * 2**k
        self.register_buffer("frequencies", found.float(), persistent=False)
        self.features = 2 * coords * frequencies

    def forward(self, points: Float[Tensor, "*B N X"]) -> Float[Tensor, "*B N F"]:
        angles = points.unsqueeze(-1) * self.frequencies
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-3)
