"""What the slices of a layer do. Axes: H heads, N points, M slices."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

Weights = Float[Tensor, "H N M"]


def attention_rank(phi: Weights, psi: Weights) -> Int[Tensor, "H"]:
    """The numerical rank of φψᵀ in each head, at most M; singular values below N ε of the largest are zero.

    The N×N kernel is never formed: φ = Q₁R₁ and ψ = Q₂R₂ give it the singular values of R₁R₂ᵀ.
    """
    tolerance = phi.shape[-2] * torch.finfo(phi.dtype).eps
    small = torch.linalg.qr(phi.double(), mode="r").R @ torch.linalg.qr(psi.double(), mode="r").R.mT
    singular = torch.linalg.svdvals(small)
    return (singular > tolerance * singular[..., :1]).sum(dim=-1)


def most_used(weights: Weights) -> Float[Tensor, "H N"]:
    """The slice of each head that holds the most weight, as a map over the points."""
    best = weights.sum(dim=-2).argmax(dim=-1)
    return weights.take_along_dim(best[:, None, None], dim=-1).squeeze(-1)
