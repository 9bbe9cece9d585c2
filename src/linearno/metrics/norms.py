"""Norms of an error relative to the truth. Axes: B batch; all that follows is one sample.

A packed batch (1, T, …) comes with its `segments`: then each of these is a sample. Where the points of a
sample are spread over processes (`ops.sharded`) a norm is that of all of them.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, float64

from linearno.ops import all_gather, is_sharded
from linearno.ops.ragged import Segments, split_segments

Fields = Float[Tensor, "B *rest"]
PerSample = Float[Tensor, "S"]


def per_sample(
    errors: Callable[[Tensor, Tensor], Tensor], prediction: Fields, truth: Fields, segments: Segments | None
) -> PerSample:
    """`errors(prediction, truth)`, which has one value a sample; of a packed batch one a segment."""
    if segments is None:
        return errors(prediction, truth)
    pairs = zip(split_segments(prediction, segments), split_segments(truth, segments), strict=True)
    return torch.cat([errors(*pair) for pair in pairs])


def mask_unknown(prediction: Fields, truth: Fields) -> tuple[Fields, Fields]:
    """Both, with zeros where the truth is not known: NaN."""
    known = ~truth.isnan()
    return prediction.where(known, 0), truth.where(known, 0)


def relative_l2(prediction: Fields, truth: Fields, segments: Segments | None = None) -> PerSample:
    """‖p − y‖₂ / ‖y‖₂ of each sample, over points and channels together.

    Not finite where the truth is zero everywhere: there is nothing to be relative to.
    """
    if segments is not None:
        return per_sample(relative_l2, prediction, truth, segments)
    error = (prediction - truth).flatten(1)
    return _norm(error) / _norm(truth.flatten(1))


def relative_mae(prediction: Fields, truth: Fields, segments: Segments | None = None) -> PerSample:
    """mean |p − y| / mean |y| of each sample, over points and channels together.

    Not finite where the truth is zero everywhere, as `relative_l2`.
    """
    if segments is not None:
        return per_sample(relative_mae, prediction, truth, segments)
    error = (prediction - truth).flatten(1)
    return mean(error.abs()) / mean(truth.flatten(1).abs())


def mean(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Over all numbers of each sample."""
    if not is_sharded():
        return values.mean(dim=1)
    count = all_gather(values.new_full((), values.shape[1], dtype=float64)).sum()
    return all_gather(values.sum(dim=1)).sum(dim=0) / count


def _norm(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    own = values.norm(dim=1)
    return all_gather(own).norm(dim=0) if is_sharded() else own
