"""Fourier transforms between scattered points and a grid, through a learned deformation (Geo-FNO).

Axes: B batch, N points, C channels, K modes (k1, k2) with k1 = 0 … m − 1, −m … −1 and k2 = 0 … m − 1.
"""

from math import pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.nn.spectral import ModeMixing, from_low_modes, full_precision, low_modes

Points = Float[Tensor, "B N 2"]
CENTRE = 1e-4  # polar coordinates are measured from (CENTRE, CENTRE)


class Deformation(nn.Module):
    """Map points of a mesh to the torus on which their Fourier transform is taken:  ξ = x + x ⊙ g(x).

    g is a network of x, its polar coordinates, and their sines and cosines at frequencies 2^k π. It runs in
    float32 (or float64) under autocast too.

    Args:
        width: features; a multiple of 4, and width / 4 frequencies.
        code: channels of a code of each sample's shape that g also sees; 0: none.
    """

    frequencies: Tensor

    def __init__(self, width: int = 32, code: int = 0):
        if width % 4:
            raise ValueError(f"the width of the deformation is {width}: expected a multiple of 4")
        super().__init__()
        self.register_buffer("frequencies", pi * 2.0 ** torch.arange(width // 4), persistent=False)
        self.lift = nn.Linear(4, width)
        self.shape = nn.Linear(code, width) if code else nn.Linear(3 * width, 4 * width)
        layers = [layer for _ in range(3) for layer in (nn.Linear(4 * width, 4 * width), nn.Tanh())]
        self.network = nn.Sequential(*layers, nn.Linear(4 * width, 2))

    def forward(self, x: Points, code: Float[Tensor, "B S"] | None = None) -> Points:
        with torch.autocast(x.device.type, enabled=False):
            x = full_precision(x)
            offset = x - CENTRE
            polar = [torch.atan2(offset[..., 1], offset[..., 0]), offset.norm(dim=-1)]
            features = torch.cat([x, torch.stack(polar, dim=-1)], dim=-1)
            waves = (features.unsqueeze(-1) * self.frequencies.to(x)).flatten(-2)
            h = torch.cat([self.lift(features), waves.sin(), waves.cos()], dim=-1)
            if code is None:
                h = self.shape(h)
            else:
                own = self.shape(code.to(x)).unsqueeze(1)
                h = torch.cat([own.expand(-1, x.shape[1], -1), h], dim=-1)
            return x + x * self.network(h)


class Waves(NamedTuple):
    """cos and sin of 2π k·ξ at each point, for each mode."""

    cos: Float[Tensor, "B N K"]
    sin: Float[Tensor, "B N K"]


def waves_at(points: Points, modes: tuple[int, int]) -> Waves:
    """The Fourier modes at deformed points ξ."""
    rows, columns = modes
    k1 = torch.cat([torch.arange(rows), torch.arange(-rows, 0)]).to(points)
    k2 = torch.arange(columns).to(points)
    x, y = (2 * pi * points).unsqueeze(-1).unbind(dim=-2)
    angles = ((x * k1).unsqueeze(-1) + (y * k2).unsqueeze(-2)).flatten(-2)
    return Waves(angles.cos(), angles.sin())


class PointsToGrid(nn.Module):
    """Spectral convolution of a field at scattered points, evaluated on a grid of the torus.

        û_k = Σ_n h_n e^(−2πi k·ξ_n),   grid = F⁻¹(R · û)

    The sum over points is a dense matrix product, of cost N · K, for any N. It is not divided by N.

    Args:
        width: channels C.
        modes: kept modes of both axes.
        grid: points of the grid along both axes.
    """

    def __init__(self, width: int, modes: tuple[int, int], grid: tuple[int, int]):
        super().__init__()
        self.modes, self.grid = modes, grid
        self.mixing = ModeMixing(width, width, modes)

    def forward(self, h: Float[Tensor, "B N C"], waves: Waves) -> Float[Tensor, "B C X1 X2"]:
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(waves.cos)
            spectrum = torch.stack([waves.cos.mT @ h, -(waves.sin.mT @ h)], dim=-1)  # B K C 2
            mixed = self.mixing(spectrum.transpose(0, 1)).permute(1, 2, 0, 3)
            rows, columns = self.modes
            return from_low_modes(mixed.unflatten(2, (2 * rows, columns)), self.grid)


class GridToPoints(nn.Module):
    """Spectral convolution of a field on a grid of the torus, evaluated at scattered points.

        h_n = Re Σ_k v_k (e^(2πi k·ξ_n) + [k2 > 0] e^(2πi (k + (1, 0))·ξ_n)),   v = R · F grid

    The second term stands for the modes with k2 < 0: the published code pairs k1 there with −k1 − 1.

    Args:
        width: channels C.
        modes: kept modes of both axes.
    """

    def __init__(self, width: int, modes: tuple[int, int]):
        super().__init__()
        self.modes = modes
        self.mixing = ModeMixing(width, width, modes)

    def forward(self, h: Float[Tensor, "B C X1 X2"], points: Points, waves: Waves) -> Float[Tensor, "B N C"]:
        with torch.autocast(h.device.type, enabled=False):
            spectrum = self.mixing.on(low_modes(full_precision(h), self.modes)).flatten(2, -2)
            real, imaginary = spectrum.transpose(1, 2).unbind(dim=-1)  # B K C
            turn = 2 * pi * points[..., :1]
            paired = (torch.arange(waves.cos.shape[-1]) % self.modes[1] > 0).to(points)
            cos = waves.cos + paired * (waves.cos * turn.cos() - waves.sin * turn.sin())
            sin = waves.sin + paired * (waves.sin * turn.cos() + waves.cos * turn.sin())
            return cos @ real - sin @ imaginary
