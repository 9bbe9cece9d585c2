"""Geometry-informed neural operator (Li et al., NeurIPS 2023): Fourier blocks between kernel integrals."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.models.published_gino import PUBLISHED
from linearno.models.registry import model
from linearno.nn.embeddings import CoordinateWaves, TimeEmbedding, WaveKind
from linearno.nn.kernel_integral import ChannelKernel, Transform
from linearno.nn.latent_cube import BoundingBox, Box, FourierBlock, LatentCube, grid_shape, one_if_shared
from linearno.nn.padding import padding_of
from linearno.nn.point_mlp import Mask, PointMlp
from linearno.nn.point_operator import Coords, Inputs, Output, Time, join_features
from linearno.nn.spectral import full_precision, modes_per_axis, require_resolved
from linearno.ops import Segments

Hidden = tuple[PositiveInt, ...]
LatentInputs = Float[Tensor, "S GC"] | None  # of packed meshes one for each mesh


def gino_needs(settings: Any) -> tuple[str, ...]:
    """Unscaled coordinates; a time and fields on the latent grid, if the model takes them."""
    needs = {"time": settings.time, "latent_inputs": settings.latent_inputs > 0, "positions": True}
    return tuple(need for need, needed in needs.items() if needed)


class LatentField(NamedTuple):
    """Features on the latent grid, and the box that it covers: what a query needs."""

    features: Float[Tensor, "B G W"]
    box: BoundingBox


@model("gino", needs=gino_needs, published=(PUBLISHED,), family="points and graphs")
class GINO(nn.Module):
    """Geometry-informed neural operator: Fourier blocks on a latent grid (Li et al., 2023).

    Paper: https://arxiv.org/abs/2309.00583. A kernel integral takes the features of the points p to a regular
    grid y, and another one takes those of the grid back to the points:

        f(y) = mean over |p − y| ≤ r_in of κ(p, y) ⊙ [x, a](p),   h = lift([f, b]) + E(t)
        z = σ(F⁻¹(R · F h) + W h + c),   h ← σ(mlp(z) + g ⊙ h)        `depth` times, in the last without σ
        u(p) = head(Σ over |y − p| ≤ r_out of κ'(y, p) ⊙ h(y))

    κ, κ' are networks of sines and cosines of both end points, σ is a GELU, b a field given on the grid. A
    grid point that sees no points gets 0. The box of the points is mapped to the unit cube axis by axis: κ,
    the grid and both radii are on that cube, [x, a] holds the scaled coordinates. On a grid of fixed size the
    cost is O(N). `query` predicts at any points of the box.

    Widths are those of neuraloperator (https://github.com/neuraloperator/neuraloperator); grid, box and radii
    are our settings. Published weights are read with `box` the unit cube. ShapeNet-Car has `latent=32` and
    radii of 0.033; for AirfRANS we set `box=[[-2, 4], [-1.5, 1.5]]` in metres.

    Args:
        coords: number of coordinates X of a point; 1, 2 or 3.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: channels W on the grid.
        modes: kept Fourier modes of each axis, or one number for all; at most half the points of an axis.
        depth: Fourier blocks.
        latent: points along each axis of the grid, or one number for all; None: 64, or 32 of three axes.
        box: bounds of the grid, one pair for each axis, in unscaled coordinates; None: those of each mesh.
        radius_in: r_in, on the unit cube; None: 1.5 steps of the grid.
        radius_out: r_out, on the unit cube; None: 1.5 steps of the grid.
        neighbours: most points that a grid point sees, the nearest; points see all grid points within r_out.
        kernel_in: channels of the hidden layers of κ.
        kernel_out: channels of the hidden layers of κ'.
        transform: "linear", or "nonlinear" if kernels see the field that they multiply too.
        embedding: frequencies of sines and cosines: 10000^(−2k/F) of "transformer", 2^k π of "nerf".
        frequencies: F.
        lift_width: channels of the hidden layer of the lift; None: 2 W.
        mlp_width: channels of the hidden layer of `mlp`; None: W / 2.
        head_width: channels of the hidden layer of the head; None: 4 W.
        latent_inputs: channels C of b, such as a distance to a surface: an auxiliary field `latent_inputs` of
            each sample, passed as `forward(..., latent_inputs=(B, G · C))`, grid points in C order; 0: none.
        time: whether the model takes a time, as `forward(..., time=(B, 1))`.

    >>> model = GINO(coords=2, inputs=1, outputs=1)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    >>> model.query(points, model.encode(coords, a))  # (B, K, 2) → (B, K, 1)
    """

    capturable = True

    def __init__(
        self,
        *,
        coords: int,
        inputs: int = 0,
        outputs: int,
        width: PositiveInt = 64,
        modes: PositiveInt | tuple[PositiveInt, ...] = 8,
        depth: PositiveInt = 4,
        latent: PositiveInt | tuple[PositiveInt, ...] | None = None,
        box: Box | None = None,
        radius_in: PositiveFloat | None = None,
        radius_out: PositiveFloat | None = None,
        neighbours: PositiveInt = 32,
        kernel_in: Hidden = (80, 80, 80),
        kernel_out: Hidden = (512, 256),
        transform: Transform = "linear",
        embedding: WaveKind = "transformer",
        frequencies: PositiveInt = 32,
        lift_width: PositiveInt | None = None,
        mlp_width: PositiveInt | None = None,
        head_width: PositiveInt | None = None,
        latent_inputs: NonNegativeInt = 0,
        time: bool = False,
    ):
        shape = grid_shape(latent, coords)
        modes = modes_per_axis(modes, coords)
        require_resolved(modes, shape)
        super().__init__()
        self.features, self.latent_inputs = coords + inputs, latent_inputs
        self.grid = LatentCube(shape, box, radius_in, radius_out, neighbours)
        waves = CoordinateWaves(coords, frequencies, embedding)
        self.to_grid = ChannelKernel(self.features, waves, kernel_in, transform=transform)
        self.to_points = ChannelKernel(width, waves, kernel_out, transform=transform, reduction="sum")
        lift = (self.features + latent_inputs, lift_width or 2 * width, width)
        self.lift = PointMlp(lift, activation="gelu", exact_input=True)
        self.time = TimeEmbedding(width) if time else None
        hidden = mlp_width or max(1, width // 2)
        blocks = (FourierBlock(width, modes, hidden, activate=i < depth - 1) for i in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.head = PointMlp((width, head_width or 4 * width, outputs), activation="gelu", exact_output=True)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Coords | None = None,
        latent_inputs: LatentInputs = None,
        segments: Segments | None = None,
    ) -> Output:
        """Outputs at the points.

        Args:
            coords: scaled coordinates.
            inputs: input channels.
            time: of each sample, if the model takes one.
            positions: unscaled coordinates, in which the box lies; None: `coords`.
            latent_inputs: a field on the latent grid, if the model takes one.
            segments: offsets of packed meshes.
        """
        positions = coords if positions is None else positions
        padding = padding_of(segments, coords)
        mask = None
        if padding is not None:
            coords, positions, mask = padding.pad(coords), padding.pad(positions), padding.mask
            inputs = None if inputs is None else padding.pad(inputs)
        states = self.encode(
            coords, inputs, time=time, positions=positions, latent_inputs=latent_inputs, mask=mask
        )
        out = self.query(positions, states)
        return out if padding is None else padding.unpad(out)

    def encode(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Coords | None = None,
        latent_inputs: LatentInputs = None,
        mask: Mask | None = None,
    ) -> LatentField:
        """Features on the latent grid: all that a query needs. `mask` excludes padded points."""
        f = join_features(coords, inputs, self.features)
        positions = one_if_shared(coords if positions is None else positions)
        box = self.grid.box_of(positions)
        unit = box.to_unit(positions)
        f = self.to_grid(f, unit, self.grid.points_of(unit), self.grid.graph_in(unit, mask))
        h = self.lift(self._append(f, latent_inputs)).to(f.dtype)
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time input")
        if self.time is not None and time is not None:
            h = h + self.time(time)
        image = self.blocks(h.mT.unflatten(-1, self.grid.shape))
        return LatentField(full_precision(image).flatten(2).mT, box)

    def query(self, points: Float[Tensor, "B K X"], states: LatentField) -> Output:
        """The field at any points, each on its own, in the coordinates in which the positions were given."""
        features, box = states
        axes = len(self.grid.shape)
        if points.shape[-1] != axes:
            raise UserError(f"points: this model takes {axes} coordinates, got {points.shape[-1]}")
        unit = box.to_unit(one_if_shared(points) if box.low.shape[0] == 1 else points)
        return self.head(self.to_points(features, self.grid.points_of(unit), unit, self.grid.graph_out(unit)))

    def _append(self, f: Tensor, latent_inputs: LatentInputs) -> Tensor:
        """[f, b] at each point of the grid."""
        expected = f.shape[1] * self.latent_inputs
        given = 0 if latent_inputs is None else latent_inputs.shape[-1]
        if given != expected:
            raise UserError(
                f"latent_inputs: this model takes {self.latent_inputs} channels at {f.shape[1]} grid points, "
                f"(B, {expected}); got {given} numbers a sample"
            )
        if latent_inputs is None:
            return f
        return torch.cat([f, latent_inputs.unflatten(-1, (f.shape[1], -1))], dim=-1)
