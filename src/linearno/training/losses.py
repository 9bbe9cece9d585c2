"""What training minimises, in physical units. Axes: B batch, N points = R rows × L columns, C channels."""

from collections.abc import Callable
from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.metrics.norms import relative_l2

Points = Float[Tensor, "B N C"]
Grid = Float[Tensor, "B R L C"]
Loss = Callable[[Tensor, Tensor], Tensor]  # prediction (B, N, C), truth (B, N, C) → scalar
Spacing = Literal["1/s", "1/(s-1)"]


class LossConfig(Config):
    """Relative L2, and on a 2-D grid the relative L2 of its derivatives with a weight.

    `spacing` is the step of the central differences on a side of s points: `1/s` is the published code's,
    `1/(s-1)` the true distance of nodes that include both ends. A relative norm cancels it, so both give
    the same loss.
    `reduction` over the batch: `sum` is the published one; the gradient then grows with the batch.
    """

    gradient_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    spacing: Spacing = "1/s"
    reduction: Literal["sum", "mean"] = "sum"


def make_loss(config: LossConfig, grid: tuple[int, ...] | None) -> Loss:
    """Σ_b relL2(p, y) + w Σ_b (relL2(∂x p, ∂x y) + relL2(∂y p, ∂y y)), or its mean over b."""
    if config.gradient_weight == 0:
        return lambda prediction, truth: _reduce(relative_l2(prediction, truth), config)
    if grid is None or len(grid) != 2:
        raise UserError(
            f"training.loss.gradient_weight={config.gradient_weight} needs data on a 2-D grid, "
            f"these are on {'none' if grid is None else f'one of {len(grid)} dimensions'}; set it to 0"
        )

    def loss(prediction: Points, truth: Points) -> Float[Tensor, ""]:
        slopes = gradient_error(prediction.unflatten(1, grid), truth.unflatten(1, grid), config.spacing)
        return _reduce(relative_l2(prediction, truth) + config.gradient_weight * slopes, config)

    return loss


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


def _reduce(errors: Float[Tensor, "B"], config: LossConfig) -> Float[Tensor, ""]:
    return errors.sum() if config.reduction == "sum" else errors.mean()
