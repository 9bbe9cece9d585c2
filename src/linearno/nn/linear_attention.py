"""Linear attention: sums of keysᵀ values over the points come before the products with queries.

Axes: B batch, N points that ask, K points that are gathered, W width, H heads, D head width (W = H·D,
head-major), V width of values. The kernel q kᵀ (N×K) is never formed: the cost is O((N + K) D V) per head.
"""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from linearno.nn.latent_attention import merge_heads, split_heads

Queries = Float[Tensor, "B H N D"]
Keys = Float[Tensor, "B H K D"]
Values = Float[Tensor, "B H K V"]
Output = Float[Tensor, "B H N V"]
Mask = Bool[Tensor, "B K"]  # False: a padded entry, excluded from sums over the points

Form = Literal["galerkin", "normalised", "efficient"]


def mean_outer(key: Keys, value: Values, mask: Mask | None = None) -> Float[Tensor, "B H D V"]:
    """kᵀ v / K, the mean over the gathered points: a Monte Carlo estimate of an integral."""
    if mask is None:
        return key.mT @ value / key.shape[2]
    return (key * mask[:, None, :, None]).mT @ value / mask.sum(dim=1)[:, None, None, None]


def mean_product(query: Queries, key: Keys, value: Values, mask: Mask | None = None) -> Output:
    """q (kᵀ v) / K."""
    return query @ mean_outer(key, value, mask)


def normalised_product(query: Queries, key: Keys, value: Values, mask: Mask | None = None) -> Output:
    """q (kᵀ v) / (q · Σ k): weights of the gathered points are positive and sum to one where q and k are."""
    if mask is not None:
        key = key * mask[:, None, :, None]
    total = key.sum(dim=2, keepdim=True)  # B H 1 D
    return query @ (key.mT @ value) / (query * total).sum(dim=-1, keepdim=True)


class LinearAttention(nn.Module):
    """Multi-head linear attention, from points x to points y:  merge(out of each head).

        galerkin     q̃ (k̃ᵀ v) / K + q̃                      Galerkin Transformer, Neural-Solver-Library
        normalised   q̃ (k̃ᵀ v) / (q̃ · Σ k̃) + q̃              GNOT
        efficient    q̃ D^(−1/2) (softmax_K(k)ᵀ v)            Shen et al., 2021

    with q = query(x), k = key(y), v = value(y), q̃ and k̃ their softmax over D.

    Args:
        width: W, a multiple of `heads`.
        heads: H.
        form: which of the above.
        bias: whether query, key and value have a bias; the merge always has one.
    """

    def __init__(self, width: int, heads: int, form: Form, *, bias: bool = True):
        super().__init__()
        self.heads, self.form = heads, form
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.merge = nn.Linear(width, width)

    def forward(
        self,
        x: Float[Tensor, "B N W"],
        y: Float[Tensor, "B K W"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B N W"]:
        """Features at the points of x, gathered from those of y (of x if None) that `mask` keeps."""
        y = x if y is None else y
        query = split_heads(self.query(x), self.heads).softmax(dim=-1)
        key, value = split_heads(self.key(y), self.heads), split_heads(self.value(y), self.heads)
        if self.form == "efficient":
            if mask is not None:
                key = key.masked_fill(~mask[:, None, :, None], -float("inf"))
            out = query * query.shape[-1] ** -0.5 @ (key.softmax(dim=2).mT @ value)
        else:
            product = mean_product if self.form == "galerkin" else normalised_product
            out = product(query, key.softmax(dim=-1), value, mask) + query
        return self.merge(merge_heads(out))
