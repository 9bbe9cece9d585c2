"""Linear attention with rotary positions, as in OFormer.

Axes: B batch, N points that ask, K points that are gathered, X coordinates, W width, H heads (each of width
W), Z the width of a decoder, P pairs of channels for each coordinate (W = 2·P·X).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from linearno.nn.latent_attention import Mask, merge_heads, split_heads
from linearno.nn.linear_attention import mean_outer

Points = Float[Tensor, "B N W"]
Positions = Float[Tensor, "B N X"]
States = Float[Tensor, "B H Z Z"]


def require_pairs(name: str, width: int, coords: int) -> None:
    """`ValueError` if a width does not consist of pairs of channels for each coordinate."""
    if width % (2 * coords):
        raise ValueError(
            f"{name}={width} is not a multiple of {2 * coords}, a pair of channels for each of {coords} "
            f"coordinates; the next that is: {width + -width % (2 * coords)}"
        )


class Rotary(nn.Module):
    """Rotates pairs of channels by angles that are proportional to a coordinate.

        (a, b) ↦ (a cos θ − b sin θ, b cos θ + a sin θ),   θ = scale · x · 10000^(−p/P),  p = 0 … P − 1

    An equal share of the channels belongs to each coordinate x, where channels p and p + P are a pair. The
    product of a rotated query and a rotated key depends on the difference of their positions.

    Args:
        width: channels W, a multiple of 2 · `coords`.
        coords: X.
        scale: of the coordinates.
    """

    frequencies: Tensor

    def __init__(self, width: int, coords: int, scale: float):
        super().__init__()
        require_pairs("width", width, coords)
        pairs = width // (2 * coords)
        frequencies = scale * 10000 ** (-torch.arange(pairs) / pairs)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Float[Tensor, "B H N W"], positions: Positions) -> Float[Tensor, "B H N W"]:
        angles = (positions.unsqueeze(-1) * self.frequencies).unsqueeze(1)  # B 1 N X P
        cos, sin = angles.cos(), angles.sin()
        a, b = x.unflatten(-1, (positions.shape[-1], 2, -1)).unbind(dim=-2)  # B H N X P
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-2).flatten(-3)


class RotaryLinearAttention(nn.Module):
    """merge(q (kᵀ v) / K) with q = R(Q x), k = R(norm(K y)), v = norm(V y); R rotates by the positions.

    Each head has the full width; its norms are over the channels of a point, without parameters. `gather`
    gives the W×W matrices kᵀ v / K, which are all that `read` needs of the gathered points. As in the
    published code, a single head has no merge.

    Args:
        width: W, a multiple of 2 · `coords`.
        heads: H.
        coords: X.
        scale: of the rotation; see `Rotary`.
        merge: whether heads are merged by a linear map; a single head has width W anyway.
    """

    def __init__(self, width: int, heads: int, coords: int, scale: float, *, merge: bool = True):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, heads * width, bias=False) for _ in range(3))
        self.merge = nn.Linear(heads * width, width) if merge else nn.Identity()
        self.rotary = Rotary(width, coords, scale)
        with torch.no_grad():
            for head in self.query.weight.chunk(heads):
                nn.init.orthogonal_(head, gain=1 / width)
                head.diagonal().add_(1 / width)

    def gather(self, y: Points, positions: Positions, mask: Mask | None = None) -> States:
        """kᵀ v / K of each head, over the points that `mask` keeps."""
        key, value = (
            layer_norm(part, part.shape[-1:])
            for part in (split_heads(project(y), self.heads) for project in (self.key, self.value))
        )
        return mean_outer(self.rotary(key, positions), value, mask)

    def read(self, x: Points, positions: Positions, states: States) -> Points:
        """Features at points x, from gathered states."""
        query = self.rotary(split_heads(self.query(x), self.heads), positions)
        return self.merge(merge_heads(query @ states))

    def forward(self, x: Points, positions: Positions, mask: Mask | None = None) -> Points:
        """Attention among the points x."""
        return self.read(x, positions, self.gather(x, positions, mask))


class GatedMlp(nn.Module):
    """C (GELU(A x + a) ⊙ (B x + b)) + c with a hidden width of W."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Points) -> Points:
        gate, value = self.inner(x).chunk(2, dim=-1)
        return self.outer(gelu(gate) * value)
