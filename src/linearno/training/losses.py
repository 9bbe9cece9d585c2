"""Training losses, in physical units. Axes: B batch, N points = R rows × L columns, C channels.

In a packed batch (1, T, C) each segment is a sample.
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
from linearno.data.field_data import FieldData
from linearno.data.sample import Batch
from linearno.data.scaler import Scaler
from linearno.metrics.norms import mask_unknown, mean, per_sample, relative_l2
from linearno.ops import is_sharded
from linearno.ops.backend import takes_kernel
from linearno.ops.layer_autograd import FusedRelativeError

Points = Float[Tensor, "B N C"]
Grid = Float[Tensor, "B R L C"]
Spacing = Literal["1/s", "1/(s-1)"]


@runtime_checkable
class Loss(Protocol):
    """From a prediction (B, N, C), or packed (1, T, C), and the batch with its targets to one number."""

    def __call__(self, prediction: Tensor, batch: Batch) -> Tensor: ...


class LossConfig(Config):
    """The training loss.

    Args:
        kind: "relative_l2"; "mse", the squared error averaged over points and channels; or "benchmark", the
            loss that the benchmark defines.
        gradient_weight: weight of the relative L2 error of the spatial derivatives, on a 2-D grid.
        spacing: step of the central differences on a side of s points: "1/s" in the published code, "1/(s-1)"
            the distance of nodes that include both ends. It cancels in the relative norm.
        reduction: over the batch; "sum" is published, and its gradient grows with the batch.
        scaled: divide each field by its deviation in the training data first, so that a pressure of 100,000
            and a speed of 10 count alike.
    """

    kind: Literal["relative_l2", "mse", "benchmark"] = "relative_l2"
    gradient_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    spacing: Spacing = "1/s"
    reduction: Literal["sum", "mean"] = "sum"
    scaled: bool = False


def require_loss(config: LossConfig, grid: tuple[int, ...] | None, own: PerSample | None = None) -> None:
    """Refuse a loss that these data cannot have; `own` is the benchmark's."""
    if config.gradient_weight and (grid is None or len(grid) != 2):
        raise UserError(
            f"training.loss.gradient_weight={config.gradient_weight} needs data on a 2-D grid, "
            f"these are on {'none' if grid is None else f'one of {len(grid)} dimensions'}; set it to 0"
        )
    if config.gradient_weight and config.kind != "relative_l2":
        raise UserError(
            f"training.loss.kind={config.kind} has no gradient term; set training.loss.gradient_weight=0"
        )
    if config.kind == "benchmark" and own is None:
        raise UserError("training.loss.kind=benchmark: these data define no loss; use relative_l2 or mse")


def make_loss(
    config: LossConfig,
    grid: tuple[int, ...] | None,
    scale: Float[Tensor, "C"] | None = None,
    *,
    partial: bool = False,
    own: PerSample | None = None,
) -> Loss:
    """Σ_b relL2(p, y) + w Σ_b (relL2(∂x p, ∂x y) + relL2(∂y p, ∂y y)), or its mean over b; or MSE.

    Args:
        config: which loss; see `require_loss`.
        grid: of the points, if they form one.
        scale: divisor of each channel.
        partial: targets of NaN are unknown and do not count.
        own: the loss of the benchmark, one value per sample, for `kind="benchmark"`.
    """
    plane = grid if config.gradient_weight else None

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


def channel_scale(scaler: Scaler, data: FieldData) -> Float[Tensor, "C"]:
    """The deviation of each channel; smaller for a channel known at few points, so that it counts as much."""
    if not data.spec.masked_outputs:
        return scaler.outputs.std
    known = (~data.targets.isnan()).to(scaler.outputs.std).flatten(0, -2).mean(dim=0)
    return scaler.outputs.std * known.sqrt()


def _errors(
    prediction: Points, truth: Points, grid: tuple[int, ...] | None, config: LossConfig
) -> Float[Tensor, "B"]:
    if config.kind == "mse":
        return mean((prediction - truth).square().flatten(1))
    kinds = {prediction.dtype, truth.dtype}
    refusal = None if kinds == {torch.float32} else f"fields are {kinds}"
    refusal = "points are sharded over processes" if is_sharded() else refusal
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
    """relL2 of ∂x plus relL2 of ∂y; the border of the prediction is set to zero."""
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
