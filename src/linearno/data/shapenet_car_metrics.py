"""Loss, metrics and drag of ShapeNet-Car.

Axes: B samples, N rows with the V surface points last, 4 channels: velocity and pressure.
"""

from jaxtyping import Float
from torch import Tensor
from torch.linalg import vector_norm

from linearno.data.field_data import FieldData
from linearno.data.sample import Batch, is_edges

Values = Float[Tensor, "B N 4"]
PerSample = Float[Tensor, "B"]
PRESSURE = 3
PRESSURE_WEIGHT = 0.5  # of the published loss


def published_loss(prediction: Values, batch: Batch) -> PerSample:
    """Mean squared error of the velocity plus half of that of the surface pressure.

    Each channel is divided by its deviation in the training data, `aux["loss_scale"]`; unknown targets are
    zero in both arguments and their share is part of the deviation.
    """
    error = ((prediction - batch.targets) / batch.aux["loss_scale"][:, None]).square()
    velocity = error[..., :PRESSURE].mean(dim=(1, 2))
    assert batch.surface is not None
    share = batch.surface / batch.surface.sum(dim=1, keepdim=True)
    return velocity + PRESSURE_WEIGHT * (share * error[..., PRESSURE]).sum(dim=1)


def volume(prediction: Values, batch: Batch) -> PerSample:
    """Relative L2 error of the velocity off the surface."""
    rows = prediction.shape[1] - _surface_points(batch)
    truth = batch.targets[:, :rows, :PRESSURE]
    error = prediction[:, :rows, :PRESSURE] - truth
    return vector_norm(error, dim=(1, 2)) / vector_norm(truth, dim=(1, 2))


def surface(prediction: Values, batch: Batch) -> PerSample:
    """Relative L2 error of the surface pressure."""
    predicted, truth = (_surface(part, batch)[..., PRESSURE] for part in (prediction, batch.targets))
    return vector_norm(predicted - truth, dim=1) / vector_norm(truth, dim=1)


def drag_coefficient(values: Values, batch: Batch, *, shifted: bool = False) -> PerSample:
    """C_D = 2/(v² A ρ) (−∮ p n_z dA − μ ∮ (∂v_z/∂z) n_z dA) over the quadrilaterals.

    A is the area of the convex hull of the front view; ρ = 0.3 as in the published code. Velocity gradients
    are differences to the nearest node off the surface; unknown velocities on the surface are zero.

    Args:
        values: velocity and pressure.
        batch: batch with the weights of the drag.
        shifted: take the surface velocity from the first off-surface rows, as the first published evaluation
            did by mistake.
    """
    aux, points = batch.aux, _surface_points(batch)
    pressure = _surface(values, batch)[..., PRESSURE]
    speed = values[..., 2].nan_to_num()
    near = speed.gather(1, aux["wall_neighbour"].long())
    at_wall = speed[:, :points] if shifted else speed[:, -points:]
    return (aux["pressure_weight"] * pressure + aux["friction_weight"] * (near - at_wall)).sum(dim=1)


def drag_error(prediction: Values, batch: Batch) -> PerSample:
    """Relative error of the drag coefficient."""
    return _drag_error(prediction, batch, shifted=False)


def drag_error_shifted(prediction: Values, batch: Batch) -> PerSample:
    """Relative error of the drag coefficient in the form of the first published evaluation."""
    return _drag_error(prediction, batch, shifted=True)


def drag_spearman(predictions: Values, test: FieldData) -> float:
    """Rank correlation of the drag coefficients of the test set."""
    from scipy.stats import spearmanr

    batch = test.everything()
    pairs = [drag_coefficient(part, batch).double().cpu().numpy() for part in (predictions, batch.targets)]
    return float(spearmanr(*pairs).statistic) if len(predictions) > 1 else float("nan")


def _drag_error(prediction: Values, batch: Batch, *, shifted: bool) -> PerSample:
    truth = drag_coefficient(batch.targets, batch, shifted=shifted)
    return (drag_coefficient(prediction, batch, shifted=shifted) - truth).abs() / truth.abs()


def _surface_points(batch: Batch) -> int:
    assert not is_edges(batch.aux["pressure_weight"])
    return batch.aux["pressure_weight"].shape[1]


def _surface(values: Values, batch: Batch) -> Float[Tensor, "B V 4"]:
    return values[:, -_surface_points(batch) :]
