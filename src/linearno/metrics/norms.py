"""Norms of an error relative to the truth. Axes: B batch; all that follows is one sample.

Where the points of a sample are spread over processes (`ops.sharded`) a norm is that of all of them.
"""

from jaxtyping import Float
from torch import Tensor, float64

from linearno.ops import is_sharded, of_all_ranks


def relative_l2(prediction: Float[Tensor, "B *rest"], truth: Float[Tensor, "B *rest"]) -> Float[Tensor, "B"]:
    """‖p − y‖₂ / ‖y‖₂ of each sample, over points and channels together.

    Not finite where the truth is zero everywhere: there is nothing to be relative to.
    """
    error = (prediction - truth).flatten(1)
    return _norm(error) / _norm(truth.flatten(1))


def relative_mae(prediction: Float[Tensor, "B *rest"], truth: Float[Tensor, "B *rest"]) -> Float[Tensor, "B"]:
    """mean |p − y| / mean |y| of each sample, over points and channels together.

    Not finite where the truth is zero everywhere, as `relative_l2`.
    """
    error = (prediction - truth).flatten(1)
    return mean(error.abs()) / mean(truth.flatten(1).abs())


def mean(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Over all numbers of each sample."""
    if not is_sharded():
        return values.mean(dim=1)
    count = of_all_ranks(values.new_full((), values.shape[1], dtype=float64)).sum()
    return of_all_ranks(values.sum(dim=1)).sum(dim=0) / count


def _norm(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    own = values.norm(dim=1)
    return of_all_ranks(own).norm(dim=0) if is_sharded() else own
