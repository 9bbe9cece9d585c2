"""Norms of an error relative to the truth. Axes: B batch; all that follows is one sample."""

from jaxtyping import Float
from torch import Tensor


def relative_l2(prediction: Float[Tensor, "B *rest"], truth: Float[Tensor, "B *rest"]) -> Float[Tensor, "B"]:
    """‖p − y‖₂ / ‖y‖₂ of each sample, over points and channels together.

    Not finite where the truth is zero everywhere: there is nothing to be relative to.
    """
    error = (prediction - truth).flatten(1)
    return error.norm(dim=1) / truth.flatten(1).norm(dim=1)


def relative_mae(prediction: Float[Tensor, "B *rest"], truth: Float[Tensor, "B *rest"]) -> Float[Tensor, "B"]:
    """mean |p − y| / mean |y| of each sample, over points and channels together.

    Not finite where the truth is zero everywhere, as `relative_l2`.
    """
    error = (prediction - truth).flatten(1)
    return error.abs().mean(dim=1) / truth.flatten(1).abs().mean(dim=1)
