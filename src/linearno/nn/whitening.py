"""Features made orthonormal with their covariance. Axes: B batch, N points, K features."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

Features = Float[Tensor, "B N K"]
Matrix = Float[Tensor, "K K"]

NEW_SHARE = 0.1  # of the covariance of a batch in the running mean
JITTERS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)  # added to the diagonal, as little as the factorisation needs


class Whitening(nn.Module):
    """p ↦ p L⁻ᵀ with the Cholesky factor L of the covariance, Σ = L Lᵀ: features with the covariance 1.

        training     Σ = mean of p pᵀ over all points of the batch
        evaluation   Σ = running mean of those of the batches, 9/10 of it and 1/10 of the latest; the
                     identity before the first

    `forward` leaves the running mean alone and returns the covariance of the batch for `update`, which is
    called once a step, also where a block is computed again in the backward pass. Computed in the precision
    of the running mean under autocast too.

    Args:
        features: K.
    """

    covariance: Matrix
    inverse_factor: Matrix
    batches: Tensor
    jitters: Tensor

    def __init__(self, features: int):
        super().__init__()
        self.register_buffer("covariance", torch.eye(features))
        self.register_buffer("inverse_factor", torch.eye(features))  # L⁻ᵀ of the running mean
        self.register_buffer("batches", torch.tensor(0))
        self.register_buffer("jitters", torch.tensor(JITTERS), persistent=False)

    def forward(self, p: Features, mask: Tensor | None = None) -> tuple[Features, Matrix | None]:
        """Orthonormal features, and in training the covariance of the points that `mask` keeps."""
        with torch.autocast(p.device.type, enabled=False):
            p = p.to(self.covariance.dtype)
            if not self.training:
                return p @ self.inverse_factor, None
            covariance = covariance_of(p, mask)
            return p @ inverse_factor(covariance, self.jitters), covariance

    @torch.no_grad()
    def update(self, covariance: Matrix) -> None:
        """Take the covariance of a batch into the running mean."""
        share = torch.where(self.batches == 0, 1.0, NEW_SHARE).to(covariance.dtype)
        self.covariance.lerp_(covariance, share)
        self.inverse_factor.copy_(inverse_factor(self.covariance, self.jitters))
        self.batches.add_(1)


def covariance_of(p: Features, mask: Tensor | None = None) -> Matrix:
    """Mean of p pᵀ over the points that `mask` (B, N) keeps, not centred."""
    if mask is None:
        points = p.flatten(0, 1)
        return points.mT @ points / len(points)
    kept = (p * mask.unsqueeze(-1)).flatten(0, 1)
    return kept.mT @ kept / mask.sum()


def inverse_factor(covariance: Matrix, jitters: Float[Tensor, "J"]) -> Matrix:
    """L⁻ᵀ of Σ + ε 1 = L Lᵀ, with the first of the `jitters` ε that makes the matrix positive definite."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    with torch.no_grad():
        failed = torch.linalg.cholesky_ex(covariance + jitters[:, None, None] * identity).info != 0
        jitter = jitters.take(failed.to(torch.uint8).argmin())  # indexing would wait for the device
    factor = torch.linalg.cholesky_ex(covariance + jitter * identity).L
    return torch.linalg.solve_triangular(factor, identity, upper=False).mT
