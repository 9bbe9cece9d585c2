"""The skeleton that LinearNO and Transolver share: lift, blocks of attention and MLP, head.

Axes: B batch, N points, X coordinates, C channels, W width.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.device import keep_freed_memory
from linearno.core.errors import UserError
from linearno.nn.embeddings import TimeEmbedding, UnifiedPosition, unit_grid
from linearno.nn.layers import GridConv, mlp, pointwise
from linearno.nn.settings import ModelConfig, Unified
from linearno.nn.slice_attention import SliceAttention
from linearno.ops import State

Coords = Float[Tensor, "B N X"]
Inputs = Float[Tensor, "B N C_in"] | None
Output = Float[Tensor, "B N C_out"]
Time = Float[Tensor, "B 1"] | None
Positions = Float[Tensor, "B N P"] | None  # raw coordinates, for a unified position beside scaled ones


class Block(nn.Module):
    """h + attention(norm h), then h + mlp(norm h). Without gradients the result takes the place of h."""

    def __init__(self, width: int, mlp_ratio: int, attention: SliceAttention):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = mlp(width, mlp_ratio * width, width)

    def forward(self, h: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        x, state, normaliser = self.attention.encode(self.norm_attention(h), state)

        def finish(h: Tensor, x: Tensor) -> Tensor:
            h = self.attention.decode(x, state, normaliser).add_(h)
            return self.mlp(self.norm_mlp(h)).add_(h)

        return pointwise(finish, h, x, in_place=True), state


class PointTransformer(nn.Module):
    """Fields at N points to fields at the same points, for any N that the stem accepts.

    A model of the family is this with its own `attention`. The published ones differ further in whether the
    placeholder joins when inputs are given, and in how convolutions are initialised.
    """

    grid_points: Tensor | None

    def __init__(
        self,
        config: ModelConfig,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        attention: Callable[[], SliceAttention],
        always_placeholder: bool = False,
        init_conv: Callable[[Tensor], Tensor] | None = None,
    ):
        super().__init__()
        keep_freed_memory()
        self.config, self.sizes = config, {"coords": coords, "inputs": inputs, "outputs": outputs}
        self.always_placeholder = always_placeholder
        self.unified: UnifiedPosition | None = None
        self.register_buffer("grid_points", None, persistent=False)
        if config.unified is not None:
            self._measure_from(config.unified, coords)
        self.features = self._place_features(coords) + inputs
        self.lift = mlp(self.features, 2 * config.width, config.width)
        self.time = TimeEmbedding(config.width) if config.time else None
        blocks = [Block(config.width, config.mlp_ratio, attention()) for _ in range(config.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, outputs)
        self.apply(lambda module: _initialise(module, init_conv))
        self.placeholder = nn.Parameter(torch.rand(config.width) / config.width)

    def forward(
        self, coords: Coords, inputs: Inputs = None, *, time: Time = None, positions: Positions = None
    ) -> Output:
        h = self._lift(coords, inputs, time, positions)
        for block in self.blocks:
            h, _ = block(h)
        return self._head(h)

    def encode(
        self, coords: Coords, inputs: Inputs = None, *, time: Time = None, positions: Positions = None
    ) -> list[State]:
        """What each layer's slices hold for this mesh: all that a query needs."""
        self._require_queryable()
        states, h = [], self._lift(coords, inputs, time, positions)
        for block in self.blocks:
            h, state = block(h)
            states.append(state)
        return states

    def query(
        self,
        states: list[State],
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        positions: Positions = None,
    ) -> Output:
        """The field of an encoded mesh at any points; at the mesh's own points it equals `forward`."""
        self._require_queryable()
        h = self._lift(coords, inputs, time, positions)
        for block, state in zip(self.blocks, states, strict=True):
            h, _ = block(h, state)
        return self._head(h)

    def slice_weights(
        self, coords: Coords, inputs: Inputs = None, *, time: Time = None, positions: Positions = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and ψ (B, H, N, M) of each layer in turn, for pictures and ranks."""
        h = self._lift(coords, inputs, time, positions)
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention.weights(block.norm_attention(h))
            h, _ = block(h)

    def _lift(
        self, coords: Tensor, inputs: Tensor | None, time: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        place = self._place(coords, positions)
        z = place if inputs is None else torch.cat([place, inputs], dim=-1)
        if z.shape[-1] != self.features:
            raise UserError(
                f"this model takes {self.features} features a point, got {z.shape[-1]}: "
                f"{place.shape[-1]} of position and {0 if inputs is None else inputs.shape[-1]} of inputs"
            )
        h = pointwise(self.lift, z)
        if inputs is None or self.always_placeholder:
            h = h + self.placeholder
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time input")
        return h if self.time is None or time is None else h + self.time(time)

    def _head(self, h: Tensor) -> Tensor:
        return pointwise(lambda part: self.head(self.norm(part)), h)

    def _measure_from(self, unified: Unified, coords: int) -> None:
        axes = coords
        if unified.place == "grid":
            grid = self.config.require_grid()
            self.grid_points, axes = unit_grid(grid), len(grid)
        self.unified = UnifiedPosition(unified.ref, unified.box or ((0.0, 1.0),) * axes)

    def _place_features(self, coords: int) -> int:
        if self.unified is None:
            return coords
        return self.unified.features + (coords if self._beside else 0)

    @property
    def _beside(self) -> bool:
        return self.config.unified is not None and self.config.unified.place == "positions"

    def _place(self, coords: Tensor, positions: Tensor | None) -> Tensor:
        if self.unified is None:
            return coords
        if self._beside:
            if positions is None:
                raise UserError("this model needs positions=: the raw coordinates of its points")
            return torch.cat([coords, self.unified(positions)], dim=-1)
        if self.grid_points is None:
            return self.unified(coords)
        if coords.shape[-2] != len(self.grid_points):
            raise UserError(
                f"this model was built for {len(self.grid_points)} points, got {coords.shape[-2]}"
            )
        return self.unified(self.grid_points).expand(len(coords), -1, -1)

    def _require_queryable(self) -> None:
        if self.grid_points is not None or any(isinstance(m, GridConv) for m in self.modules()):
            raise UserError("a model tied to a grid cannot be queried elsewhere; build it with stem='linear'")
        if any(isinstance(m, SliceAttention) and m.phi == "N" for m in self.modules()):
            raise UserError("φ normalised over the points cannot be queried elsewhere; use phi='M'")


def _initialise(module: nn.Module, init_conv: Callable[[Tensor], Tensor] | None) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d | nn.Conv3d) and init_conv is not None:
        init_conv(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
