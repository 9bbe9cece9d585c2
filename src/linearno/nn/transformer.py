"""Base classes of slice-attention models: lift, blocks of attention and MLP, norm and linear head.

Axes: B batch, N points, X coordinates, C channels, W width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linearno.core.device import keep_freed_memory
from linearno.core.errors import UserError
from linearno.metrics.cost import Shape
from linearno.nn.config import ReferenceDistances
from linearno.nn.embeddings import TimeEmbedding, UnifiedPosition, unit_grid
from linearno.nn.layers import GridConv, Linear, Mlp, add_into, add_norm, pointwise
from linearno.nn.protocol import spec_of
from linearno.nn.rollout import roll_out
from linearno.nn.slice_attention import SliceAttention
from linearno.ops import Segments, State
from linearno.ops.gather_scatter import map_segments
from linearno.ops.layers import Residual, initial_stream, norm_linear
from linearno.ops.ragged import expand_per_segment, sizes_of

Coords = Float[Tensor, "B N X"]
Inputs = Float[Tensor, "B N C_in"] | None
Output = Float[Tensor, "B N C_out"]
Time = Float[Tensor, "S 1"] | None  # S = B, of packed meshes as many as there are
Positions = Float[Tensor, "B N P"] | None  # raw coordinates, for a unified position beside scaled ones
Placeholder = Literal["without-inputs", "always"]


class Block(nn.Module):
    """h + attention(norm h), then h + mlp(norm h).

    With gradients the last sum is deferred to the next norm, which reads the residual stream anyway. Without
    gradients h is overwritten.

    Args:
        width: feature width W.
        mlp_ratio: hidden width of the MLP, in multiples of `width`.
        attention: attention on features (B, N, W).
    """

    def __init__(self, width: int, mlp_ratio: int, attention: SliceAttention):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = Mlp(width, mlp_ratio * width, width)

    def forward(
        self, stream: Residual, state: State | None = None, segments: Segments | None = None
    ) -> tuple[Residual, State]:
        stream, normed = add_norm(self.norm_attention, stream)
        x, state, normaliser = self.attention.encode(normed, state, segments)
        if torch.is_grad_enabled():
            scattered = self.attention.scatter(x, state, normaliser, segments)
            stream, normed = add_norm(self.norm_mlp, self.attention.merge.add_to(stream, scattered))
            return self.mlp.add_to(stream, normed), state

        states = [state] if normaliser is None else [state, normaliser]
        return Residual(map_segments(self._finish, segments, [stream.total(), x], states)), state

    def _finish(self, h: Tensor, x: Tensor, state: State, normaliser: State | None = None) -> Tensor:
        """Output of the block at points of one mesh, from the gathered state; without gradients."""

        def finish(h: Tensor, x: Tensor) -> Tensor:
            h = add_into(self.attention.decode(x, state, normaliser), h)
            return add_into(self.mlp(add_norm(self.norm_mlp, Residual(h))[1]), h)

        return pointwise(finish, h, x, in_place=True)

    def partial_state(self, h: Float[Tensor, "B N W"]) -> State:
        """State of some points of a mesh; see `SliceAttention.partial_state`."""
        return self.attention.partial_state(add_norm(self.norm_attention, Residual(h))[1])


class Transformer(nn.Module, ABC):
    """Blocks on a residual stream, then a norm and a linear head; subclasses define the features before them.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        heads: attention heads.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
    """

    capturable = True
    fused_parameters = True
    blocks: nn.ModuleList
    norm: nn.LayerNorm
    head: Linear

    def __init__(self, *, coords: int, inputs: int, outputs: int, width: int, heads: int, mlp_ratio: int):
        if width % heads:
            raise ValueError(
                f"width={width} is not a multiple of heads={heads}; "
                f"the next that is: {width + -width % heads}"
            )
        super().__init__()
        keep_freed_memory()
        self.sizes = {"coords": coords, "inputs": inputs, "outputs": outputs}
        self.outputs, self.width, self.mlp_ratio = outputs, width, mlp_ratio
        self.recompute = False  # store only the input of each block and recompute it in the backward pass

    @property
    def config(self) -> Any:
        """The settings that the model was built with."""
        return spec_of(self).config

    @abstractmethod
    def slice_weights(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and ψ (B, H, N, M) of each layer, for the arguments of `forward`."""

    def _run(
        self, block: nn.Module, stream: Residual, state: State | None = None, segments: Segments | None = None
    ) -> tuple[Residual, State]:
        if not (self.recompute and torch.is_grad_enabled()):
            return block(stream, state, segments)
        return checkpoint(block, stream, state, segments, use_reentrant=False, preserve_rng_state=False)

    def _head(self, stream: Residual) -> Tensor:
        """Norm and head in the precision of the residual stream, without autocast."""
        norm, head = self.norm, self.head

        def output(stream: Residual) -> Tensor:
            return norm_linear(stream, norm.weight, norm.bias, norm.eps, head.weight, head.bias)

        with torch.autocast(stream.h.device.type, enabled=False):
            if torch.is_grad_enabled():
                return output(stream)
            return pointwise(lambda h: output(Residual(h)), stream.total())


class PointTransformer(Transformer):
    """Maps fields at N points to fields at the same points, for any N that the stem accepts.

    Models of the family differ in `attention`, in whether the placeholder is added when inputs are given, and
    in the initialisation of convolutions.

    One call predicts for meshes of different sizes, packed one after another: coords (1, T, X), T = Σ N_i,
    and `segments`, their S + 1 offsets. Points attend to the points of their own mesh only.

    Args:
        coords: number of coordinates X of a point.
        inputs: number of input channels at a point; 0 if the geometry is the only input.
        outputs: number of predicted channels.
        width: feature width W; a multiple of `heads`.
        depth: number of blocks.
        heads: attention heads.
        mlp_ratio: hidden width of each MLP, in multiples of `width`.
        grid: points per axis of a structured mesh, in C order; None: any points.
        time: whether `forward` takes a time (B, 1).
        unified: distances to reference points in place of (or in addition to) the coordinates.
        attention: creates the attention of a block.
        init_conv: initialises the weights of convolutions; None: as PyTorch.
    """

    grid_points: Tensor | None
    grid_distances: Tensor | None
    fixed_grid: tuple[int, ...] | None  # of the convolutions or of the positions

    def __init__(
        self,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int,
        grid: tuple[int, ...] | None,
        time: bool,
        unified: ReferenceDistances | None,
        attention: Callable[[], SliceAttention],
        placeholder: Placeholder = "without-inputs",
        init_conv: Callable[[Tensor], Tensor] | None = None,
    ):
        super().__init__(
            coords=coords, inputs=inputs, outputs=outputs, width=width, heads=heads, mlp_ratio=mlp_ratio
        )
        self.always_placeholder = placeholder == "always"
        self.unified: UnifiedPosition | None = None
        self.register_buffer("grid_points", None, persistent=False)
        self.register_buffer("grid_distances", None, persistent=False)
        self._beside = unified is not None and unified.place == "positions"
        if unified is not None:
            self._measure_from(unified, coords, grid)
        self.features = self._place_features(coords) + inputs
        self.lift = Mlp(self.features, 2 * width, width, exact=True)
        self.time = TimeEmbedding(width) if time else None
        blocks = [Block(width, mlp_ratio, attention()) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.fixed_grid = grid if self.grid_free_settings else None
        self.norm = nn.LayerNorm(width)
        self.head = Linear(width, outputs)
        self.apply(lambda module: initialise(module, init_conv))
        self.placeholder = nn.Parameter(torch.rand(width) / width)

    @property
    def point_blocks(self) -> nn.ModuleList:
        """`blocks` as a property: from Python 3.12 on `isinstance` does not find submodules."""
        return self.blocks

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Positions = None,
        segments: Segments | None = None,
    ) -> Output:
        stream = self._lift(coords, inputs, time, positions, segments)
        for block in self.blocks:
            stream, _ = self._run(block, stream, None, segments)
        return self._head(stream)

    def encode(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Positions = None,
        segments: Segments | None = None,
    ) -> list[State]:
        """State of each layer for each mesh: all that `query` needs."""
        self.require_queryable()
        states, stream = [], self._lift(coords, inputs, time, positions, segments)
        for block in self.blocks:
            stream, state = block(stream, None, segments)
            states.append(state)
        return states

    def query(
        self,
        coords: Coords,
        states: list[State],
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Positions = None,
        segments: Segments | None = None,
    ) -> Output:
        """Predict at any points of an encoded mesh; at the points of the mesh this equals `forward`."""
        self.require_queryable()
        stream = self._lift(coords, inputs, time, positions, segments)
        for block, state in zip(self.blocks, states, strict=True):
            stream, _ = block(stream, state, segments)
        return self._head(stream)

    def lift_features(
        self, coords: Coords, inputs: Inputs = None, *, time: Time = None, positions: Positions = None
    ) -> Float[Tensor, "B N W"]:
        """Features before the first block, computed point by point."""
        return self._lift(coords, inputs, time, positions).total()

    def project_features(self, h: Float[Tensor, "B N W"]) -> Output:
        """Outputs from the features after the last block, computed point by point."""
        return self._head(Residual(h))

    def rollout(
        self,
        coords: Coords,
        frames: Float[Tensor, "B N C_in"],
        steps: int,
        *,
        segments: Segments | None = None,
    ) -> Output:
        """Predict the `steps` frames that follow `frames`, each from the frames before it."""
        return roll_out(lambda frames: self(coords, frames, segments=segments), frames, steps)

    def slice_weights(
        self, coords: Coords, inputs: Inputs = None, *, time: Time = None, positions: Positions = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and ψ (B, H, N, M) of each layer, for figures and ranks; not for packed meshes."""
        stream = self._lift(coords, inputs, time, positions)
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention.weights(add_norm(block.norm_attention, stream)[1])
            stream, _ = block(stream)

    def cost_shape(self, points: int) -> Shape:
        """Sizes that determine the cost of one sample with `points` points."""
        block = self.blocks[0]
        assert isinstance(block, Block)
        attention = block.attention
        conv = attention.stem.conv if isinstance(attention.stem, GridConv) else None
        return Shape(
            points=points,
            features=self.features,
            outputs=self.outputs,
            width=self.width,
            heads=attention.heads,
            depth=len(self.blocks),
            slices=attention.query.out_features,
            mlp_ratio=self.mlp_ratio,
            taps=1 if conv is None else prod(conv.kernel_size),
            merge_layers=sum(isinstance(part, nn.Linear) for part in attention.merge),
            time=self.time is not None,
            stems=1 if attention.value_stem is None else 2,
            scores=1 if attention.key is None else 2,
            values=attention.value is not None,
            mixes=attention.mix is not None,
        )

    @property
    def grid_free_settings(self) -> str:
        """Settings with which a model bound to a grid would predict anywhere; empty for any other."""
        convolves = any(isinstance(module, GridConv) for module in self.modules())
        ties = {"stem=linear": convolves, "unified.place=coords": self.grid_points is not None}
        return " and ".join(setting for setting, tied in ties.items() if tied)

    def _lift(
        self,
        coords: Tensor,
        inputs: Tensor | None,
        time: Tensor | None,
        positions: Tensor | None,
        segments: Segments | None = None,
    ) -> Residual:
        if segments is not None:
            self._require_packed(coords, segments)
        place, distances = self._place(coords, positions)
        parts = [part for part in (place, inputs, distances) if part is not None]
        z = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if z.shape[-1] != self.features:
            given = 0 if inputs is None else inputs.shape[-1]
            raise UserError(
                f"this model takes {self.features} features a point, got {z.shape[-1]}: "
                f"{z.shape[-1] - given} of position and {given} of inputs"
            )
        shift = self.placeholder if inputs is None or self.always_placeholder else None
        h = initial_stream(pointwise(lambda z: self.lift(z, shift), z), z)
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time input")
        if self.time is None or time is None:
            return Residual(h)
        when = self.time(time)
        return Residual(h + (when if segments is None else expand_per_segment(when, segments)))

    def _measure_from(self, unified: ReferenceDistances, coords: int, grid: tuple[int, ...] | None) -> None:
        axes = coords
        if unified.place == "grid":
            grid = require_grid(grid)
            self.grid_points, axes = unit_grid(grid), len(grid)
        if unified.box is not None and not self._beside and len(unified.box) != axes:
            raise ValueError(f"unified.box={unified.box}: expected {axes} pairs of bounds")
        self.unified = UnifiedPosition(unified.ref, unified.box or ((0.0, 1.0),) * axes)
        if self.grid_points is not None:
            self.grid_distances = self.unified(self.grid_points)  # the same for every sample

    def _place_features(self, coords: int) -> int:
        if self.unified is None:
            return coords
        return self.unified.features + (coords if self._beside else 0)

    def _place(self, coords: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features of the position before the inputs, and distances after them."""
        if self.unified is None:
            return coords, None
        if self._beside:
            if positions is None:
                raise UserError("this model needs positions=: the raw coordinates of its points")
            return coords, self.unified(positions)
        if self.grid_points is None:
            return self.unified(coords), None
        if coords.shape[-2] != len(self.grid_points):
            raise UserError(
                f"this model was built for {len(self.grid_points)} points, got {coords.shape[-2]}"
            )
        assert self.grid_distances is not None
        return self.grid_distances.expand(coords.shape[0], -1, -1), None

    def _require_packed(self, coords: Tensor, segments: Segments) -> None:
        if self.fixed_grid is not None:
            raise UserError(
                f"a model tied to a grid takes no packed meshes; build it with {self.grid_free_settings}"
            )
        if len(coords) != 1:
            raise UserError(f"packed meshes are one batch, coords (1, T, X); got {tuple(coords.shape)}")
        sizes_of(segments, coords.shape[1])

    def require_queryable(self) -> None:
        """Raise an error if the model cannot predict from encoded states, in chunks or at other points."""
        if self.fixed_grid is not None:
            raise UserError(
                "a model tied to a grid cannot be queried elsewhere or streamed; "
                f"build it with {self.grid_free_settings}"
            )
        if any(isinstance(block, Block) and block.attention.phi == "N" for block in self.blocks):
            raise UserError(
                "φ normalised over the points cannot be queried elsewhere or streamed; use phi='M'"
            )


def point_needs(config: Any) -> tuple[str, ...]:
    """What `forward` of a `PointTransformer` with these settings takes beyond coordinates and inputs."""
    positions = config.unified is not None and config.unified.place == "positions"
    return ("time",) * config.time + ("positions",) * positions


def require_grid(grid: tuple[int, ...] | None) -> tuple[int, ...]:
    if grid is None:
        raise UserError("a convolutional stem or a unified position on a grid needs grid=(rows, columns)")
    return grid


def initialise(module: nn.Module, init_conv: Callable[[Tensor], Tensor] | None = None) -> None:
    """Initialise as the published models: `module.apply(initialise)`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d | nn.Conv3d) and init_conv is not None:
        init_conv(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
