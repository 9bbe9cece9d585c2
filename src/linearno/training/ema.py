"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Ema:
    """w̄ ← d w̄ + (1 − d) w after every optimiser step, starting from the initial weights.

    Buffers (running statistics) are averages already and are left alone.

    Args:
        model: whose parameters are averaged.
        decay: d, between 0 and 1.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            self.weights[name].lerp_(weight, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            weight.copy_(self.weights[name])

    @contextmanager
    def swapped_into(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the block; its own are restored exactly."""
        own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(own[name])
