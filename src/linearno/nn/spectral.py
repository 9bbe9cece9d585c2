"""Fourier layers on grids and on scattered points.

Axes: B batch, N points, C channels, X grid, K modes. On every grid axis but the last the modes are the
frequencies 0 … m − 1 and −m … −1, on the last one 0 … m − 1.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

Modes = int | tuple[int, ...]
Field = Float[Tensor, "B C *X"]
Spectrum = Float[Tensor, "B C *K 2"]  # real and imaginary parts

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}  # by grid axes


def modes_per_axis(modes: Modes, axes: int) -> tuple[int, ...]:
    """One number of modes for each grid axis."""
    per_axis = (modes,) * axes if isinstance(modes, int) else tuple(modes)
    if len(per_axis) != axes:
        raise ValueError(f"modes={per_axis}: expected one number, or one for each of {axes} axes")
    return per_axis


def require_resolved(modes: Sequence[int], grid: Sequence[int], *, factorised: bool = False) -> None:
    """A ValueError if some modes lie above the Nyquist frequency of the (padded) grid."""
    limits = tuple(
        n // 2 + 1 if factorised or axis == len(grid) - 1 else n // 2 for axis, n in enumerate(grid)
    )
    if any(m > limit for m, limit in zip(modes, limits, strict=True)):
        raise ValueError(
            f"modes={tuple(modes)}: a grid of {tuple(grid)} points, padding included, resolves at most "
            f"{limits}; set fewer modes or use a finer grid"
        )


def low_modes(h: Field, modes: Sequence[int]) -> Spectrum:
    """Lowest modes of the real Fourier transform. Axis by axis, so that only they are transformed further."""
    spectrum = torch.view_as_real(torch.fft.rfft(h)).narrow(-2, 0, modes[-1])
    for axis in range(-3, -len(modes) - 2, -1):
        m = modes[axis + 1]
        full = torch.view_as_real(torch.fft.fft(as_complex(spectrum), dim=axis + 1))
        spectrum = torch.cat([full.narrow(axis, 0, m), full.narrow(axis, full.shape[axis] - m, m)], dim=axis)
    return spectrum


def from_low_modes(spectrum: Spectrum, grid: Sequence[int]) -> Field:
    """Field on `grid` whose lowest modes are `spectrum`; all others are zero."""
    for axis, n in enumerate(grid[:-1], start=2):
        m = spectrum.shape[axis] // 2
        shape = list(spectrum.shape)
        shape[axis] = n - 2 * m
        low, high = spectrum.split(m, dim=axis)
        full = torch.cat([low, spectrum.new_zeros(shape), high], dim=axis)
        spectrum = torch.view_as_real(torch.fft.ifft(as_complex(full), dim=axis))
    return real_field(spectrum, grid[-1], axis=len(grid) + 1)


def real_field(spectrum: Float[Tensor, "*any 2"], points: int, axis: int, norm: str | None = None) -> Tensor:
    """Inverse real transform along one axis, with zeros for the modes above those given."""
    missing = points // 2 + 1 - spectrum.shape[axis]
    before_last = spectrum.dim() - 1 - axis
    padded = nn.functional.pad(spectrum, [0, 0] * before_last + [0, missing])
    return torch.fft.irfft(as_complex(padded), n=points, dim=axis, norm=norm)


def as_complex(pairs: Float[Tensor, "*any 2"]) -> Complex[Tensor, "*any"]:
    """Complex numbers from their real and imaginary parts."""
    return torch.complex(*pairs.unbind(dim=-1))


def full_precision(h: Tensor) -> Tensor:
    """At least float32: there are no Fourier transforms of bfloat16."""
    return h.to(torch.promote_types(h.dtype, torch.float32))


class ModeMixing(nn.Module):
    """A complex matrix R_k for each mode k:  v_k = u_k R_k.

    Complex numbers are pairs of real ones: fused optimisers, gradient sums among processes, saved models and
    ONNX take no others, and Adam treats a complex weight as two real ones anyway. The real parts of all
    weights come before the imaginary ones, and modes before channels, so that products copy no weights.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        modes: kept modes, one number for each axis.
    """

    def __init__(self, inputs: int, outputs: int, modes: Sequence[int]):
        super().__init__()
        modes = [2 * m for m in modes[:-1]] + [modes[-1]]
        self.weight = nn.Parameter(torch.rand(2, *modes, inputs, outputs) / (inputs * outputs))

    def forward(self, u: Float[Tensor, "K R C 2"]) -> Float[Tensor, "K R C_out 2"]:
        rows = u.shape[1]
        real, imaginary = full_precision(self.weight).flatten(1, -3)
        parts = torch.cat(u.unbind(dim=-1), dim=1)  # K 2R C
        by_real, by_imaginary = parts @ real, parts @ imaginary
        return torch.stack(
            [
                by_real[:, :rows] - by_imaginary[:, rows:],
                by_real[:, rows:] + by_imaginary[:, :rows],
            ],
            dim=-1,
        )

    def on(self, spectrum: Spectrum) -> Spectrum:
        """The same for modes in the last axes."""
        mixed = self(spectrum.flatten(2, -2).permute(2, 0, 1, 3))
        return mixed.permute(1, 2, 0, 3).unflatten(2, spectrum.shape[2:-1])


class SpectralConv(nn.Module):
    """Convolution of a periodic field, by its lowest Fourier modes:  F⁻¹(R · F h).

    Computed in float32 (or float64) under autocast too.

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
    """

    def __init__(self, width: int, modes: Sequence[int]):
        super().__init__()
        self.modes = tuple(modes)
        self.mixing = ModeMixing(width, width, modes)

    def forward(self, h: Field) -> Field:
        with torch.autocast(h.device.type, enabled=False):
            h = full_precision(h)
            return from_low_modes(self.mixing.on(low_modes(h, self.modes)), h.shape[2:])


class FactorisedSpectralConv(nn.Module):
    """Sum of spectral convolutions along each grid axis:  Σ_a F_a⁻¹(R_a · F_a h). Channels are the last axis.

    Transforms are orthonormal; computed in float32 (or float64) under autocast too.

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
    """

    def __init__(self, width: int, modes: Sequence[int]):
        super().__init__()
        mixings = [ModeMixing(width, width, (m,)) for m in modes]
        for mixing, m in zip(mixings, modes, strict=True):
            nn.init.normal_(mixing.weight, std=(2 * width * m) ** -0.5)  # Xavier's, for (C, C, m, 2)
        self.modes, self.mixings = tuple(modes), nn.ModuleList(mixings)

    def forward(self, h: Float[Tensor, "B *X C"]) -> Float[Tensor, "B *X C"]:
        with torch.autocast(h.device.type, enabled=False):
            h = full_precision(h)
            along = [self._along(axis, h) for axis in range(len(self.modes))]
            return torch.stack(along).sum(dim=0)

    def _along(self, number: int, h: Tensor) -> Tensor:
        axis = 1 + number
        spectrum = torch.view_as_real(torch.fft.rfft(h, dim=axis, norm="ortho"))
        lines = spectrum.narrow(axis, 0, self.modes[number]).movedim(axis, 0)  # K B … C 2
        mixed = self.mixings[number](lines.flatten(1, -3)).unflatten(1, lines.shape[1:-2]).movedim(0, axis)
        return real_field(mixed, h.shape[axis], axis, norm="ortho")


class FourierLayer(nn.Module):
    """F⁻¹(R · F h) + W h [+ branch(h)], with W the same at every point.

    Args:
        width: channels C in and out.
        modes: kept modes, one number for each axis.
        branch: another map of the field, added to the result.
    """

    def __init__(self, width: int, modes: Sequence[int], branch: nn.Module | None = None):
        super().__init__()
        self.spectral = SpectralConv(width, modes)
        self.local = CONVOLUTIONS[len(modes)](width, width, 1)
        self.branch = branch

    def forward(self, h: Field) -> Field:
        out = self.spectral(h) + self.local(h)
        return out if self.branch is None else out + self.branch(h)


class FourierLayers(nn.Sequential):
    """Fourier layers with a GELU between them."""

    def forward(self, h: Field) -> Field:
        for number, layer in enumerate(self):
            h = layer(h if number == 0 else nn.functional.gelu(h))
        return h
