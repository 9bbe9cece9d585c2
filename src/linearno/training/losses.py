"""What training minimises, in physical units. Axes: B batch, N points = R rows × L columns, C channels.

Of a packed batch (1, T, C) each of its `segments` is a sample.
"""

from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.data.benchmark import PerSample
from linearno.data.sample import Batch
from linearno.metrics.norms import mask_unknown, mean, per_sample, relative_l2
from linearno.ops import is_sharded
from linearno.ops.backend import takes_kernel
from linearno.ops.fused_layers import FusedRelativeError

Points = Float[Tensor, "B N C"]
Grid = Float[Tensor, "B R L C"]
Spacing = Literal["1/s", "1/(s-1)"]


@runtime_checkable
class Loss(Protocol):
    """From a prediction (B, N, C), or packed (1, T, C), and the batch that holds its truth, to one number."""

    def __call__(self, prediction: Tensor, batch: Batch) -> Tensor: ...


class LossConfig(Config):
    """Relative L2, and on a 2-D grid the relative L2 of its derivatives with a weight; or the squared error.

    `kind`: `relative_l2`; `mse`, the mean over points and channels of the squared error; or `benchmark`, the
    loss that the benchmark defines.
    `spacing` is the step of the central differences on a side of s points: `1/s` is the published code's,
    `1/(s-1)` the true distance of nodes that include both ends. A relative norm cancels it, so both give
    the same loss.
    `reduction` over the batch: `sum` is the published one; the gradient then grows with the batch.
    `scaled`: fields are first divided by their deviation in the training data, so that a pressure of 100,000
    and a speed of 10 count alike.
    """

    kind: Literal["relative_l2", "mse", "benchmark"] = "relative_l2"
    gradient_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    spacing: Spacing = "1/s"
    reduction: Literal["sum", "mean"] = "sum"
    scaled: bool = False


def make_loss(
    config: LossConfig,
    grid: tuple[int, ...] | None,
    scale: Float[Tensor, "C"] | None = None,
    *,
    partial: bool = False,
    own: PerSample | None = None,
) -> Loss:
    """Σ_b relL2(p, y) + w Σ_b (relL2(∂x p, ∂x y) + relL2(∂y p, ∂y y)), or its mean over b; or so with MSE.

    Args:
        config: which loss.
        grid: of the points, where they lie on one.
        scale: what each channel is divided by first.
        partial: whether a truth of NaN does not count.
        own: the loss of the benchmark, one value per sample, for `kind="benchmark"`.
    """
    weight = config.gradient_weight
    if weight and (grid is None or len(grid) != 2):
        raise UserError(
            f"training.loss.gradient_weight={weight} needs data on a 2-D grid, "
            f"these are on {'none' if grid is None else f'one of {len(grid)} dimensions'}; set it to 0"
        )
    if weight and config.kind != "relative_l2":
        raise UserError(
            f"training.loss.kind={config.kind} has no gradient term; set training.loss.gradient_weight=0"
        )
    if config.kind == "benchmark" and own is None:
        raise UserError("training.loss.kind=benchmark: these data define no loss; use relative_l2 or mse")
    plane = grid if weight else None

    def errors_of(prediction: Points, truth: Points) -> Float[Tensor, "B"]:
        return _errors(prediction, truth, plane, config)

    def loss(prediction: Points, batch: Batch) -> Float[Tensor, ""]:
        truth = batch.targets
        if partial:
            prediction, truth = mask_unknown(prediction, truth)
        if scale is not None:
            prediction, truth = prediction / scale, truth / scale
        if config.kind == "benchmark":
            assert own is not None
            errors = own(prediction, batch._replace(targets=truth))
        else:
            errors = per_sample(errors_of, prediction, truth, batch.segments)
        return errors.sum() if config.reduction == "sum" else errors.mean()

    return loss


def _errors(
    prediction: Points, truth: Points, grid: tuple[int, ...] | None, config: LossConfig
) -> Float[Tensor, "B"]:
    if config.kind == "mse":
        return mean((prediction - truth).square().flatten(1))
    kinds = {prediction.dtype, truth.dtype}
    refusal = None if kinds == {torch.float32} else f"fields are {kinds}"
    refusal = "points are spread over processes" if is_sharded() else refusal
    if not torch.compiler.is_compiling() and takes_kernel("loss", prediction, refusal):
        return FusedRelativeError.apply(
            prediction.contiguous(), truth.contiguous(), grid, config.gradient_weight
        )
    errors = relative_l2(prediction, truth)
    if grid is None:
        return errors
    slopes = gradient_error(prediction.unflatten(1, grid), truth.unflatten(1, grid), config.spacing)
    return errors + config.gradient_weight * slopes


def gradient_error(prediction: Grid, truth: Grid, spacing: Spacing) -> Float[Tensor, "B"]:
    """relL2 of ∂x plus relL2 of ∂y, the prediction taken with its border ring set to zero."""
    inside = pad(prediction[:, 1:-1, 1:-1], (0, 0, 1, 1, 1, 1))
    predicted, true = central_differences(inside, spacing), central_differences(truth, spacing)
    return relative_l2(predicted[0], true[0]) + relative_l2(predicted[1], true[1])


def central_differences(field: Grid, spacing: Spacing) -> tuple[Grid, Grid]:
    """∂x along the columns and ∂y along the rows, (f₊ − f₋) / 2h, with zeros beyond the border."""
    rows, columns = (1 / (s if spacing == "1/s" else s - 1) for s in field.shape[1:3])
    padded = pad(field, (0, 0, 1, 1, 1, 1))
    along_x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / (2 * columns)
    along_y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / (2 * rows)
    return along_x, along_y
