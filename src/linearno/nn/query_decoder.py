"""Decoder of OFormer: predictions at query points from what attention gathered.

Axes: B batch, N query points, X coordinates, C outputs, Z latent width, H heads.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.nn.embeddings import FourierFeatures
from linearno.nn.latent_attention import ExactLinear
from linearno.nn.rotary_attention import GatedMlp, Positions, RotaryLinearAttention, States

Latent = Float[Tensor, "B N Z"]
Output = Float[Tensor, "B N C"]

DECODER_HEADS = 4
FOURIER_SCALE = 0.5  # standard deviation of the frequencies of the query points


class DirectHead(nn.Module):
    """Three linear maps of [y, p]."""

    def __init__(self, latent: int, coords: int, outputs: int):
        super().__init__()
        self.network = nn.Sequential(
            *(ExactLinear(latent + coords, latent, bias=False), nn.GELU()),
            *(nn.Linear(latent, latent // 2, bias=False), nn.GELU()),
            ExactLinear(latent // 2, outputs),
        )

    def forward(self, y: Latent, points: Positions) -> Output:
        return self.network(torch.cat([y, points.to(y.dtype)], dim=-1))


class MarchingHead(nn.Module):
    """z = A y, then in each of `march` steps z ← z + propagator([norm z, p]); each step gives u = head(z).

    Args:
        latent: Z of the features y; z has 2Z.
        coords: X.
        outputs: channels of all steps together, a multiple of `march`.
        march: number of steps.
    """

    def __init__(self, latent: int, coords: int, outputs: int, march: int):
        super().__init__()
        wide, self.march = 2 * latent, march
        self.expand = nn.Linear(latent, wide)
        self.norm_propagator = nn.LayerNorm(wide)
        self.propagator = nn.Sequential(
            *(ExactLinear(wide + coords, wide, bias=False), nn.GELU()),
            *(nn.Linear(wide, wide, bias=False), nn.GELU()),
            nn.Linear(wide, wide, bias=False),
        )
        self.norm_head = nn.LayerNorm(wide)
        self.head = nn.Sequential(
            *(nn.Linear(wide, latent, bias=False), nn.GELU()),
            *(nn.Linear(latent, latent, bias=False), nn.GELU()),
            ExactLinear(latent, outputs // march),
        )

    def forward(self, y: Latent, points: Positions) -> Output:
        z, steps = self.expand(y).to(y.dtype), []
        for _ in range(self.march):
            z = z + self.propagator(torch.cat([self.norm_propagator(z), points.to(z.dtype)], dim=-1))
            steps.append(self.head(self.norm_head(z)))
        return torch.cat(steps, dim=-1)


class QueryDecoder(nn.Module):
    """Features at query points from Fourier features of their coordinates and what attention gathered.

        y = network(fourier(q)),  y ← y + attention(y, q; states),  y ← y + mlp(y),  u = head(y, q)

    Args:
        latent: Z.
        coords: X.
        frequencies: number of Fourier features.
        scale: of the rotation; see `Rotary`.
        head: features y (B, N, Z) and points → outputs.
    """

    def __init__(self, latent: int, coords: int, frequencies: int, scale: float, head: nn.Module):
        super().__init__()
        self.fourier = FourierFeatures(coords, frequencies, FOURIER_SCALE)
        self.network = nn.Sequential(
            *(nn.Linear(frequencies, frequencies, bias=False), nn.GELU()),
            nn.Linear(frequencies, latent, bias=False),
        )
        self.attention = RotaryLinearAttention(latent, DECODER_HEADS, coords, scale)
        self.mlp = GatedMlp(latent)
        self.head = head

    def forward(self, points: Positions, states: States) -> Output:
        y = self.network(self.fourier(points)).to(points.dtype)
        y = y + self.attention.read(y, points, states)
        return self.head(y + self.mlp(y), points)
