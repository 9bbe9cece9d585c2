"""Nyström attention: softmax attention through landmarks, means of points that follow each other.

Axes: B batch, N points, M landmarks, W width, H heads, D head width (W = H·D, head-major).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from linearno.nn.latent_attention import Features, Mask, merge_heads, require_heads, split_heads

Points = Float[Tensor, "B H N D"]
Landmarks = Float[Tensor, "B H M D"]

INVERSE_ITERATIONS = 6
CONVOLVED_POINTS = 33

LandmarkScale = Literal["sample", "batch"]


class NystromAttention(nn.Module):
    """softmax(q kᵀ) v ≈ softmax(q k̄ᵀ) softmax(q̄ k̄ᵀ)⁺ softmax(q̄ kᵀ) v, plus a convolution of v.

    q̄ and k̄ are the landmarks: means over N/M points that follow each other, after zeros in front of the
    points if M does not divide N. All logits are scaled by 1/√D; the zeros are points of the third softmax.
    The pseudoinverse is approximate (`approximate_inverse`). The convolution runs over the sequence of
    points, in each channel with the weights of its head. In O(N M) for each channel.

    As in https://github.com/lucidrains/nystrom-attention (Xiong et al., AAAI 2021,
    https://arxiv.org/abs/2102.03902).

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        landmarks: M.
        scale: of the first iterate of the pseudoinverse: that of each "sample", or of the "batch".
    """

    def __init__(self, width: int, heads: int, landmarks: int, scale: LandmarkScale = "sample"):
        super().__init__()
        require_heads(width, heads)
        self.heads, self.landmarks, self.scale = heads, landmarks, scale
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        half = CONVOLVED_POINTS // 2
        self.convolution = nn.Conv2d(
            heads, heads, (CONVOLVED_POINTS, 1), padding=(half, 0), groups=heads, bias=False
        )
        self.merge = nn.Linear(width, width)

    def forward(self, h: Features, mask: Mask | None = None) -> Features:
        """Features mixed among the points that `mask` keeps, which come before those that it excludes."""
        parts = self.query_key_value(h).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        if mask is None and torch.compiler.is_exporting():  # `_gather` cannot be traced for any N
            mask = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
        if mask is None:
            query_marks, key_marks, gathered = self._gather(query, key, value)
        else:
            value = value * mask[:, None, :, None]
            query_marks, key_marks, gathered = self._gather_masked(query, key, value, mask)
        with torch.autocast(h.device.type, enabled=False):
            full = torch.promote_types(query.dtype, torch.float32)
            logits = query_marks.to(full) @ key_marks.to(full).mT * query.shape[-1] ** -0.5
            between = approximate_inverse(logits.softmax(dim=-1), self.scale) @ gathered.to(full)
        mixed = scaled_dot_product_attention(query, key_marks, between.to(query.dtype))
        return self.merge(merge_heads(mixed + self.convolution(value)))

    def _gather(self, query: Points, key: Points, value: Points) -> tuple[Landmarks, Landmarks, Landmarks]:
        """Landmarks of queries and keys, and values gathered in them."""
        zeros = -query.shape[2] % self.landmarks
        query, key, value = (pad(part, (0, 0, zeros, 0)) for part in (query, key, value))
        query_marks, key_marks = (
            part.unflatten(2, (self.landmarks, -1)).mean(dim=3) for part in (query, key)
        )
        return query_marks, key_marks, scaled_dot_product_attention(query_marks, key, value)

    def _gather_masked(
        self, query: Points, key: Points, value: Points, mask: Mask
    ) -> tuple[Landmarks, Landmarks, Landmarks]:
        """`_gather` of each sample by itself; one more key, counted as often as there are zeros."""
        points = mask.sum(dim=1, keepdim=True)
        size = (points + self.landmarks - 1) // self.landmarks  # points of a landmark
        zeros = size * self.landmarks - points
        entries = torch.arange(mask.shape[1], device=mask.device)
        marks = torch.arange(self.landmarks, device=mask.device)[:, None]
        belongs = ((entries + zeros) // size)[:, None] == marks  # B M N
        share = (belongs & mask[:, None]).to(query.dtype) / size[:, :, None]
        query_marks, key_marks = (share[:, None] @ part for part in (query, key))
        log_count = torch.where(mask, 0.0, -torch.inf)
        log_count = torch.cat([zeros.to(log_count.dtype).log(), log_count], dim=1).to(query.dtype)
        key, value = (pad(part, (0, 0, 1, 0)) for part in (key, value))
        gathered = scaled_dot_product_attention(query_marks, key, value, log_count[:, None, None])
        return query_marks, key_marks, gathered


def approximate_inverse(
    matrix: Float[Tensor, "B H M M"], scale: LandmarkScale = "sample"
) -> Float[Tensor, "B H M M"]:
    """Pseudoinverse of matrices with positive entries and rows that sum to one, by six iterations

        Z₀ = Aᵀ / max column sum,   Z ← Z (13 − A Z (15 − A Z (7 − A Z))) / 4

    of order 3 (Razavi et al., 2014). The largest sum is that of the heads of a sample or, as published, of
    the batch, so that a result depends on the other samples.
    """
    axes = (1, 3) if scale == "sample" else (0, 1, 3)
    largest = matrix.sum(dim=-2, keepdim=True).amax(dim=axes, keepdim=True)
    inverse = matrix.mT / largest
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(INVERSE_ITERATIONS):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse
