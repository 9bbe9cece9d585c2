"""Attention along one axis of a grid after the other: a kernel over the grid as a product of small ones.

Axes: B batch, G the axes of the grid (N = ∏ G points), A points along one axis, W width, H heads, D head
width (W = H·D, head-major), V width of values.
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from linearno.core.errors import UserError
from linearno.nn.latent_attention import Features, ResidualMlp, require_heads, split_heads

Image = Float[Tensor, "B *G W"]
HeadImage = Float[Tensor, "B H *G V"]


class AxisKernel(nn.Module):
    """softmax(q kᵀ / √D) over the points along one axis, from features averaged over the other axes.

        s = mlp(norm(P mean(h)))  (B, A, W),     q, k = Q s, K s in each head

    Args:
        width: W, a multiple of `heads`.
        heads: H.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        head_width = require_heads(width, heads)
        self.project = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.mlp = ResidualMlp(width, width, width, layers=1)
        self.query = nn.Linear(head_width, head_width, bias=False)
        self.key = nn.Linear(head_width, head_width, bias=False)

    def forward(self, h: Image, axis: int) -> tuple[Float[Tensor, "B H A D"], Float[Tensor, "B H A D"]]:
        """Queries and keys of the points along `axis`, which counts from 0."""
        others = [other for other in range(1, h.dim() - 1) if other != axis + 1]
        mean = h.mean(dim=others) if others else h
        s = split_heads(self.mlp(self.norm(self.project(mean))), self.heads)
        return self.query(s), self.key(s)


class FactorisedAttention(nn.Module):
    """merge(A_G … A_2 A_1 v): values v mixed along each axis of a grid in turn, with a kernel A for each.

    The matrix over all points, the Kronecker product of the kernels, is never formed: an axis of A points
    costs O(N A) for each channel.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        grid: points along each axis; the points come in C order.
    """

    def __init__(self, width: int, heads: int, grid: Sequence[int]):
        super().__init__()
        self.heads, self.grid = heads, tuple(grid)
        head_width = require_heads(width, heads)
        self.value = nn.Linear(head_width, head_width, bias=False)
        self.axes = nn.ModuleList(AxisKernel(width, heads) for _ in self.grid)
        self.merge = nn.Linear(width, width)

    def forward(self, h: Features) -> Features:
        image = self.image_of(h)
        values = self.value(split_heads(h, self.heads)).unflatten(2, self.grid)
        for axis, kernel in enumerate(self.axes):
            query, key = kernel(image, axis)
            values = mix_axis(query, key, values, axis)
        return self.merge(values.movedim(1, -2).flatten(-2).flatten(1, -2))

    def image_of(self, h: Features) -> Image:
        """The features as an image; an error if these are not those of the points of the grid."""
        if h.shape[1] != prod(self.grid):
            raise UserError(
                f"this model was built for the grid {self.grid} = {prod(self.grid)} points, got {h.shape[1]}"
            )
        return h.unflatten(1, self.grid)


def mix_axis(
    query: Float[Tensor, "B H A D"], key: Float[Tensor, "B H A D"], values: HeadImage, axis: int
) -> HeadImage:
    """softmax(q kᵀ / √D) v along one axis of the grid, which counts from 0."""
    rows = values.movedim(axis + 2, 2)
    mixed = scaled_dot_product_attention(query, key, rows.flatten(3))
    return mixed.unflatten(3, rows.shape[3:]).movedim(2, axis + 2)


def dense_mix(
    kernels: Sequence[tuple[Float[Tensor, "B H _ D"], Float[Tensor, "B H _ D"]]], values: HeadImage
) -> HeadImage:
    """`mix_axis` along every axis with the matrix over all points formed: O(N²) memory, for tests."""
    matrix = values.new_ones(1, 1, 1, 1)
    for query, key in kernels:
        factor = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        matrix = torch.einsum("...ij,...kl->...ikjl", matrix, factor).flatten(-4, -3).flatten(-2, -1)
    return (matrix @ values.flatten(2, -2)).unflatten(2, values.shape[2:-1])
