"""U-Net on graphs whose coarser levels keep some points of the finer ones.

Axes: B samples, N points of a level, n points that the next one keeps, K neighbours, X coordinates, W width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from linearno.nn.config import NeighbourGraph
from linearno.nn.graph import Graph, nearest_graph
from linearno.nn.graph_operator import SageLayer
from linearno.nn.point_mlp import Features, Mask
from linearno.nn.point_operator import Coords
from linearno.ops.neighbours import find_neighbours

Keys = Float[Tensor, "B N"]

WAVE_NUMBERS = (12.9898, 78.233, 37.719)  # of the positions in the unit box; one for each axis
SCATTERING = 1e7  # points of which 1e-6 of the box lie between have unrelated keys


class Level(NamedTuple):
    """A coarser level of a U-Net.

    Args:
        kept: its points, as numbers among those of the finer level.
        mask: points that exist, if samples are padded.
        graph: between its points.
        nearest: its nearest point to each point of the finer level.
    """

    kept: Int64[Tensor, "B n"]
    mask: Mask | None
    graph: Graph
    nearest: Int64[Tensor, "B N"]


def fixed_keys(positions: Coords) -> Keys:
    """A number in [0, 1) for each point that depends on its place in the bounding box of the sample alone.

    The sine of a large multiple scatters the numbers of near points. In float64, so that devices agree.
    """
    x = positions.detach().double()
    low, high = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
    x = (x - low) / torch.where(high > low, high - low, 1)
    waves = torch.tensor(WAVE_NUMBERS[: x.shape[-1]], dtype=x.dtype, device=x.device)
    return (SCATTERING * (x * waves).sum(dim=-1).sin()).frac().abs()


def keep_points(
    keys: Keys, mask: Mask | None, pooling: int
) -> tuple[Int64[Tensor, "B n"], Bool[Tensor, "B n"] | None]:
    """The points with the smallest keys, one of `pooling`, rounded up in each sample; which of them exist.

    Args:
        keys: a number for each point.
        mask: points that exist, if samples are padded.
        pooling: points of the finer level for each kept one.
    """
    points = keys.shape[1]
    count = (points + pooling - 1) // pooling
    if torch.compiler.is_exporting():  # one padded entry more: a level of one point would be fixed in a file
        count, mask = count + 1, torch.ones_like(keys, dtype=torch.bool) if mask is None else mask
        keys = torch.nn.functional.pad(keys.masked_fill(~mask, torch.inf), (0, count), value=torch.inf)
    elif mask is not None:
        keys = keys.masked_fill(~mask, torch.inf)
    kept = keys.topk(count, dim=1, largest=False).indices.clamp(max=points - 1)
    if mask is None:
        return kept, None
    sizes = (mask.sum(dim=1, keepdim=True) + pooling - 1) // pooling
    return kept, torch.arange(count, device=keys.device) < sizes


def take(x: Float[Tensor, "B N C"], numbers: Int64[Tensor, "B n"]) -> Float[Tensor, "B n C"]:
    """The rows of each sample with these numbers."""
    starts = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1)[numbers + starts]


def coarser_levels(
    coords: Coords,
    keys: Keys,
    mask: Mask | None,
    graphs: Sequence[NeighbourGraph],
    pooling: int,
    cache: bool = True,
) -> list[Level]:
    """The levels below the points of a batch, one for each of `graphs`, found in these coordinates."""
    levels = []
    for settings in graphs:
        kept, remaining = keep_points(keys, mask, pooling)
        some, keys = take(coords, kept), take(keys.unsqueeze(-1), kept).squeeze(-1)
        graph = nearest_graph(some, some, settings, remaining, cache)
        nearest = find_neighbours(some, coords, count=1, mask=remaining, cache=cache).rows[..., 0]
        levels.append(Level(kept, remaining, graph, nearest))
        coords, mask = some, remaining
    return levels


class SageUNet(nn.Module):
    """GraphSAGE layers on each level, down to fewer points with more channels and up again.

        down:  h₀ ← layer(h),  hₙ ← layer(kept points of hₙ₋₁)
        up:    hₙ ← layer([hₙ₊₁ at the nearest kept point, hₙ])

    All layers have a norm, and a ReLU but for the last one.

    Args:
        width: channels of the finest level; each coarser one has twice as many.
        depth: coarser levels.
    """

    def __init__(self, width: int, depth: int):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = zip([width, *widths], widths, strict=False)
        self.down = nn.ModuleList(SageLayer(*pair) for pair in pairs)
        self.up = nn.ModuleList(SageLayer(3 * w, w, activate=n > 0) for n, w in enumerate(widths[:-1]))

    def forward(self, h: Features, mask: Mask | None, graph: Graph, levels: Sequence[Level]) -> Features:
        skips = [self.down[0](h, mask, graph)]
        for layer, level in zip(self.down[1:], levels, strict=True):
            skips.append(layer(take(skips[-1], level.kept), level.mask, level.graph))
        h = skips.pop()
        finer = [(mask, graph), *((level.mask, level.graph) for level in levels)]
        for number in reversed(range(len(levels))):
            joined = torch.cat([take(h, levels[number].nearest), skips[number]], dim=-1)
            h = self.up[number](joined, *finer[number])
        return h
