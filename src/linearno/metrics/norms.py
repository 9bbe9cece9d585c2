"""Norms of an error relative to the truth. Axes: B batch, S samples; the other axes form one sample.

With `segments` the batch is packed (1, T, …), and each segment is a sample. If the points of a sample are
sharded over processes (`ops.sharded`), norms are taken over the points of all shards.
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
    """`errors(prediction, truth)` with one value per sample, which is a segment of a packed batch."""
    if segments is None:
        return errors(prediction, truth)
    pairs = zip(split_segments(prediction, segments), split_segments(truth, segments), strict=True)
    return torch.cat([errors(*pair) for pair in pairs])


def mask_unknown(prediction: Fields, truth: Fields) -> tuple[Fields, Fields]:
    """Prediction and truth with zeros where the truth is unknown (NaN)."""
    known = ~truth.isnan()
    return prediction.where(known, 0), truth.where(known, 0)


def relative_l2(prediction: Fields, truth: Fields, segments: Segments | None = None) -> PerSample:
    """‖p − y‖₂ / ‖y‖₂ of each sample, over points and channels together.

    Not finite for a sample whose truth is zero everywhere.
    """
    if segments is not None:
        return per_sample(relative_l2, prediction, truth, segments)
    error = (prediction - truth).flatten(1)
    return _norm(error) / _norm(truth.flatten(1))


def relative_mae(prediction: Fields, truth: Fields, segments: Segments | None = None) -> PerSample:
    """mean |p − y| / mean |y| of each sample, over points and channels together.

    Not finite for a sample whose truth is zero everywhere.
    """
    if segments is not None:
        return per_sample(relative_mae, prediction, truth, segments)
    error = (prediction - truth).flatten(1)
    return mean(error.abs()) / mean(truth.flatten(1).abs())


def mean(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Mean over all values of each sample, over all shards."""
    if not is_sharded():
        return values.mean(dim=1)
    count = all_gather(values.new_full((), values.shape[1], dtype=float64)).sum()
    return all_gather(values.sum(dim=1)).sum(dim=0) / count


def _norm(values: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    norm = values.norm(dim=1)
    return all_gather(norm).norm(dim=0) if is_sharded() else norm
