"""Averaged weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Ema:
    """w̄ ← d w̄ + (1 − d) w after every optimiser step, from the initial weights on.

    Parameters only: buffers (running statistics) are averages already and stay the model's own.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            self.weights[name].lerp_(weight, 1 - self.decay)

    @torch.no_grad()
    def give_to(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            weight.copy_(self.weights[name])

    @contextmanager
    def lent_to(self, model: nn.Module) -> Iterator[None]:
        """The model with averaged weights inside the block, and exactly its own again afterwards."""
        own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.give_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(own[name])
