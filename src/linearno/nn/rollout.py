"""Rollout: each predicted frame becomes an input of the next prediction."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from linearno.core.errors import UserError


def roll_out(
    next_frame: Callable[[Tensor], Tensor],
    frames: Float[Tensor, "B N I"],
    steps: int,
    *,
    detach: bool = False,
) -> Float[Tensor, "B N O"]:
    """Predict `steps` frames and concatenate them; each prediction replaces the oldest input frame.

    With `detach` no gradient flows through predictions that are fed back.
    """
    if steps < 1:
        raise UserError(f"steps={steps}: a rollout takes one step or more")
    predicted: list[Tensor] = []
    for _ in range(steps):
        frame = next_frame(frames)
        predicted.append(frame)
        known = frames if not detach else frames.detach()
        frames = torch.cat([known[..., frame.shape[-1] :], frame.detach() if detach else frame], dim=-1)
    return torch.cat(predicted, dim=-1)
