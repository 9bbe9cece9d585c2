"""Inputs of models that reconstruct a field from observations.

Axes: B batch, K observations, N query points, X coordinates, C channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.errors import UserError

Observed = Float[Tensor, "B K X"]
Values = Float[Tensor, "B K C_in"]
Points = Float[Tensor, "B N X"]
Output = Float[Tensor, "B N C_out"]


def join_observations(coords: Tensor, inputs: Tensor, axes: int, channels: int) -> Float[Tensor, "B K F"]:
    """[coords, inputs]; an error if these are not `channels` values at each of one or more points."""
    require_observations(coords, inputs, axes, channels)
    return torch.cat([coords, inputs], dim=-1)


def require_observations(coords: Tensor, inputs: Tensor, axes: int, channels: int) -> None:
    """An error if these are not `channels` values at each of one or more points."""
    require_points(coords, axes, inputs)
    if inputs.shape[-1] != channels:
        raise UserError(f"this model takes {channels} values an observation, got {inputs.shape[-1]}")
    if coords.shape[:-1] != inputs.shape[:-1]:
        raise UserError(f"coords {tuple(coords.shape)} and inputs {tuple(inputs.shape)} do not fit together")
    if not inputs.shape[-2]:
        raise UserError("there are no observations: a field is reconstructed from one or more")


def require_points(points: Tensor, axes: int, states: Tensor) -> None:
    """An error if points do not have `axes` coordinates, or belong to other samples than `states`."""
    if points.shape[-1] != axes:
        raise UserError(f"this model takes {axes} coordinates, got {points.shape[-1]}")
    if points.shape[0] != states.shape[0]:
        samples = states.shape[0]
        raise UserError(f"points are {tuple(points.shape)}, but the observations are of {samples} samples")
