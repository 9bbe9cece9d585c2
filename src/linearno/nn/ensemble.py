"""An ensemble of models of one architecture, trained with different seeds on the same samples.

Axes: E members, B batch, N points, X coordinates, C channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.nn.protocol import spec_of


class Ensemble(nn.Module):
    """The mean of E ≥ 2 models, and their standard deviation s² = Σ (u_e − ū)² / (E − 1).

    It has the specification of its members, and takes what they take.

    Args:
        members: registered models with the same settings.
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        if len(members) < 2:
            raise ValueError(f"an ensemble has two members or more, got {len(members)}")
        self.ensemble_members = nn.ModuleList(members)
        self._model_spec = spec_of(members[0])

    def forward(
        self, coords: Float[Tensor, "B N X"], inputs: Tensor | None = None, **more: Any
    ) -> Float[Tensor, "B N C"]:
        return self.mean_and_std(coords, inputs, **more)[0]

    def mean_and_std(
        self, coords: Float[Tensor, "B N X"], inputs: Tensor | None = None, **more: Any
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N C"]]:
        """Mean and standard deviation over the members; `more` are further arguments of their `forward`."""
        outputs = torch.stack([member(coords, inputs, **more) for member in self.ensemble_members])
        return outputs.mean(dim=0), outputs.std(dim=0)
