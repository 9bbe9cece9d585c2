"""The learning rate over a run: PyTorch's schedules, counted in optimiser steps or in epochs."""

import warnings
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from linearno.training.config import TrainingConfig


class Schedule:
    """`onecycle`, `cosine` (to zero) or `constant`, as the config says.

    `onecycle` has PyTorch's defaults, as published: 30 % of the run up from lr/25 (`start_factor` may say
    another part) to lr, then down to 1/10 000 of the start, both by a cosine, with the first beta going
    0.95 → 0.85 → 0.95 against it.
    """

    def __init__(self, optimizer: Optimizer, config: TrainingConfig, steps_per_epoch: int):
        self._every = config.schedule_every
        total = config.epochs * (steps_per_epoch if self._every == "step" else 1)
        self._inner: LRScheduler | None = None
        if config.schedule == "onecycle":
            self._inner = OneCycleLR(
                optimizer, max_lr=config.lr, total_steps=total, div_factor=config.start_factor
            )
        elif config.schedule == "cosine":
            self._inner = CosineAnnealingLR(optimizer, T_max=total, eta_min=0)

    def after_step(self) -> None:
        if self._inner and self._every == "step":
            self._inner.step()

    def after_epoch(self) -> None:
        if self._inner and self._every == "epoch":
            self._inner.step()

    def state(self) -> dict[str, Any]:
        """Plain numbers and words: survives JSON unchanged."""
        return self._inner.state_dict() if self._inner else {}

    def load(self, state: dict[str, Any]) -> None:
        """Continue where `state` says; with `{"moved_to": k}` at step k of a schedule of another length."""
        if self._inner and "moved_to" in state:
            self._move_to(state["moved_to"])
        elif self._inner:
            self._inner.load_state_dict(state)

    def _move_to(self, step: int) -> None:
        inner = self._inner
        assert inner is not None
        inner.last_epoch = step
        inner._step_count = step + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch expects these to be called by `step`
            closed = getattr(inner, "_get_closed_form_lr", None)
            rates = inner.get_lr() if closed is None else closed()  # OneCycleLR also sets the betas
        for group, rate in zip(inner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        inner._last_lr = list(rates)
