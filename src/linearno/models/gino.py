"""Geometry-informed neural operator (Li et al., NeurIPS 2023): Fourier blocks between kernel integrals."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.models.registry import PublishedFormat, model
from linearno.nn.embeddings import CoordinateWaves, TimeEmbedding, Waves
from linearno.nn.kernel_integral import ChannelKernel, Transform
from linearno.nn.latent_cube import Box, FourierBlock, Frame, LatentCube
from linearno.nn.padding import padding_of
from linearno.nn.point_mlp import Mask, PointMlp
from linearno.nn.point_operator import Coords, Inputs, Output, Time, join_features
from linearno.nn.spectral import full_precision, modes_per_axis, require_resolved
from linearno.ops import Segments
from linearno.ops.neighbours import is_shared

Hidden = tuple[PositiveInt, ...]
LatentInputs = Float[Tensor, "S GC"] | None  # of packed meshes one for each mesh
HINTS = ("latent", "box", "radius_in", "radius_out", "neighbours", "embedding", "transform")


def gino_needs(settings: Any) -> tuple[str, ...]:
    """Unscaled coordinates; a time and fields on the latent grid, if the model takes them."""
    needs = {"time": settings.time, "latent_inputs": settings.latent_inputs > 0, "positions": True}
    return tuple(need for need, needed in needs.items() if needed)


def hidden_of(weights: Mapping[str, Tensor], network: str) -> tuple[int, ...]:
    """Channels of the hidden layers of a published network."""
    biases = [name for name in weights if re.fullmatch(rf"{re.escape(network)}\.fcs\.\d+\.bias", name)]
    return tuple(len(weights[f"{network}.fcs.{number}.bias"]) for number in range(len(biases) - 1))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a GINO of neuraloperator."""
    networks = [f"gno_{end}.integral_transform.channel_mlp" for end in ("in", "out")]
    first = f"{networks[0]}.fcs.0.weight"
    if first not in weights:
        return None
    kernels = [hidden_of(weights, network) for network in networks]
    width, _, *modes = weights["fno_blocks.convs.0.weight.tensor"].shape
    if any(mode % 2 for mode in modes[:-1]):
        raise UserError(f"these weights of a gino have {tuple(modes)} modes: only even numbers are supported")
    coords = len(modes)
    features = len(weights[f"{networks[0]}.fcs.{len(kernels[0])}.bias"])
    seen = weights[first].shape[1] - (features if hints.get("transform") == "nonlinear" else 0)
    return {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights["projection.fcs.1.bias"]),
        "width": width,
        "modes": (*(mode // 2 for mode in modes[:-1]), modes[-1]),
        "depth": sum(re.fullmatch(r"fno_blocks\.convs\.\d+\.bias", name) is not None for name in weights),
        "frequencies": seen // (4 * coords),
        "kernel_in": kernels[0],
        "kernel_out": kernels[1],
        "lift_width": hidden_of(weights, "lifting")[0],
        "mlp_width": hidden_of(weights, "fno_blocks.channel_mlp.0")[0],
        "head_width": hidden_of(weights, "projection")[0],
        "latent_inputs": weights["lifting.fcs.0.weight"].shape[1] - features,
        "box": ((0.0, 1.0),) * coords,
    } | {name: hints[name] for name in HINTS if name in hints}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Centred modes in the order of the transform, modes before channels, and maps of points as matrices."""
    axes = next(tensor.dim() - 2 for name, tensor in weights.items() if name.endswith(".mixing.weight"))
    found = {}
    for name, tensor in weights.items():
        if name.endswith(".mixing.weight"):
            centred = [*range(2, 1 + axes)]
            ordered = torch.fft.ifftshift(tensor, dim=centred) if centred else tensor
            modes_first = ordered.movedim((0, 1), (-2, -1))
            tensor = torch.stack([modes_first.real, modes_first.imag])
        elif name.endswith(".local.bias"):
            tensor = tensor.flatten()
        elif name.endswith(".gate"):
            tensor = tensor[0]
        elif name.startswith("blocks.") and tensor.dim() == 3:
            tensor = tensor.unflatten(-1, (1,) * axes)
        elif tensor.dim() == 3:
            tensor = tensor.squeeze(-1)
        found[name] = tensor
    return found


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^gno_in\.integral_transform\.channel_mlp\.fcs\.", "to_grid.kernel.layers."),
        (r"^gno_out\.integral_transform\.channel_mlp\.fcs\.", "to_points.kernel.layers."),
        (r"^lifting\.fcs\.", "lift.layers."),
        (r"^projection\.fcs\.", "head.layers."),
        (r"^fno_blocks\.convs\.(\d+)\.bias$", r"blocks.\1.fourier.local.bias"),
        (r"^fno_blocks\.convs\.(\d+)\.weight\.tensor$", r"blocks.\1.fourier.spectral.mixing.weight"),
        (r"^fno_blocks\.fno_skips\.(\d+)\.conv\.", r"blocks.\1.fourier.local."),
        (r"^fno_blocks\.channel_mlp\.(\d+)\.fcs\.0\.", r"blocks.\1.mlp.0."),
        (r"^fno_blocks\.channel_mlp\.(\d+)\.fcs\.1\.", r"blocks.\1.mlp.2."),
        (r"^fno_blocks\.channel_mlp_skips\.(\d+)\.weight$", r"blocks.\1.gate"),
    ],
    hints=HINTS,
    convert=convert,
)


class LatentField(NamedTuple):
    """Features on the latent grid, and the box that it covers: what a query needs."""

    features: Float[Tensor, "B G W"]
    frame: Frame


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
        embedding: Waves = "transformer",
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
        frame = self.grid.frame(positions)
        unit = frame.to_unit(positions)
        f = self.to_grid(f, unit, self.grid.points_of(unit), self.grid.graph_in(unit, mask))
        h = self.lift(self._append(f, latent_inputs)).to(f.dtype)
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time input")
        if self.time is not None and time is not None:
            h = h + self.time(time)
        image = self.blocks(h.mT.unflatten(-1, self.grid.shape))
        return LatentField(full_precision(image).flatten(2).mT, frame)

    def query(self, points: Float[Tensor, "B K X"], states: LatentField) -> Output:
        """The field at any points, each on its own, in the coordinates in which the positions were given."""
        features, frame = states
        axes = len(self.grid.shape)
        if points.shape[-1] != axes:
            raise UserError(f"points: this model takes {axes} coordinates, got {points.shape[-1]}")
        unit = frame.to_unit(one_if_shared(points) if frame.low.shape[0] == 1 else points)
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


def grid_shape(latent: int | tuple[int, ...] | None, coords: int) -> tuple[int, ...]:
    """Points along each axis of the latent grid."""
    if coords not in (1, 2, 3):
        raise ValueError(f"a latent grid has 1, 2 or 3 axes, got {coords} coordinates; choose another model")
    if latent is None:
        latent = 32 if coords == 3 else 64
    shape = (latent,) * coords if isinstance(latent, int) else tuple(latent)
    if len(shape) != coords:
        raise ValueError(f"latent={shape}: expected one number, or one for each of {coords} coordinates")
    return shape


def one_if_shared(positions: Coords) -> Float[Tensor, "S N X"]:
    """The first sample, if all are the same memory: neighbours and kernels are then computed once."""
    return positions[:1] if positions.shape[0] > 1 and is_shared(positions) else positions
