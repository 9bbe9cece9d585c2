"""Skeleton of the models that lift points to features, apply blocks and project to outputs.

Axes: B batch, N points, X coordinates, C channels, W width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linearno.core.errors import UserError
from linearno.nn.embeddings import TimeEmbedding
from linearno.nn.padding import padding_of
from linearno.ops import Segments

Coords = Float[Tensor, "B N X"]
Inputs = Float[Tensor, "B N C_in"] | None
Time = Float[Tensor, "S 1"] | None  # one per sample; of packed meshes one per mesh
Output = Float[Tensor, "B N C_out"]


class PointOperator(nn.Module):
    """head(blocks(lift([x, a]) + E(t))): fields at N points to fields at the same points, for any N.

    Features between the blocks keep the precision of the weights under autocast. Each block maps features
    (B, N, W), a mask (B, N) of padded points or None, and what a subclass adds, to features (B, N, W).

    Args:
        features: coordinates and input channels of a point together.
        lift: features → W.
        blocks: maps of the features.
        head: W → outputs.
        time: embedding of the time, if the model takes one.
    """

    blocks: nn.ModuleList
    stochastic = False  # whether blocks draw random numbers

    def __init__(
        self,
        *,
        features: int,
        lift: nn.Module,
        blocks: Sequence[nn.Module],
        head: nn.Module,
        time: TimeEmbedding | None = None,
    ):
        super().__init__()
        self.features, self.lift, self.blocks, self.head = features, lift, nn.ModuleList(blocks), head
        self.time = time
        self.recompute = False  # store only the input of each block and recompute it in the backward pass

    @property
    def capturable(self) -> bool:
        """A recomputed block restores the random state, which a CUDA graph cannot."""
        return not (self.stochastic and self.recompute)

    def forward(
        self,
        coords: Coords,
        inputs: Inputs = None,
        *,
        time: Time = None,
        segments: Segments | None = None,
    ) -> Output:
        return self.apply_blocks(coords, inputs, time=time, segments=segments)

    def apply_blocks(
        self,
        coords: Coords,
        inputs: Inputs,
        *,
        time: Time = None,
        segments: Segments | None = None,
        shift: Float[Tensor, "S 1 W"] | Float[Tensor, "W"] | None = None,
        weights: Float[Tensor, "B N"] | None = None,
        positions: Coords | None = None,
        more: tuple[Any, ...] = (),
    ) -> Output:
        """`forward`, with a `shift` of the lifted features.

        Blocks also get `weights` and `positions` where given, and `more`.
        """
        z = join_features(coords, inputs, self.features)
        padding = padding_of(segments, coords)
        if padding is not None:
            z = padding.pad(z)
            weights = None if weights is None else padding.pad(weights[..., None])[..., 0]
            positions = None if positions is None else padding.pad(positions)
        h = self.lift(z).to(z.dtype)
        h = h if shift is None else h + shift
        if (time is None) != (self.time is None):
            raise UserError(f"this model takes {'no' if self.time is None else 'a'} time input")
        if self.time is not None and time is not None:
            h = h + self.time(time)
        mask = None if padding is None else padding.mask
        extra = (*(part for part in (weights, positions) if part is not None), *more)
        out = self.head(self._run_blocks(h, mask, *extra))
        return out if padding is None else padding.unpad(out)

    def _run_blocks(self, h: Tensor, *extra: Any) -> Tensor:
        """The features for the head, from the lifted ones."""
        for block in self.blocks:
            h = self._run_block(block, h, *extra)
        return h

    def _run_block(self, block: nn.Module, *args: Any) -> Any:
        if not (self.recompute and torch.is_grad_enabled()):
            return block(*args)
        return checkpoint(block, *args, use_reentrant=False, preserve_rng_state=self.stochastic)


def join_features(coords: Coords, inputs: Inputs, features: int) -> Float[Tensor, "B N F"]:
    """[coords, inputs]; an error if these are not the features that a model was built for."""
    z = coords if inputs is None else torch.cat([coords, inputs], dim=-1)
    if z.shape[-1] != features:
        given = 0 if inputs is None else inputs.shape[-1]
        raise UserError(
            f"this model takes {features} features a point, got {z.shape[-1]}: "
            f"{coords.shape[-1]} coordinates and {given} inputs"
        )
    return z
