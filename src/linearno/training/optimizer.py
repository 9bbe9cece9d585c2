"""Optimiser and learning-rate schedule as the configuration says."""

import warnings
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

from linearno.core.errors import UserError
from linearno.ops.backend import takes_kernel
from linearno.training.config import TrainingConfig
from linearno.training.flat_adam import FlatAdam, flat_refusal


def make_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Adam or AdamW over all parameters: `FlatAdam` if it applies, else PyTorch's fused form."""
    parameters = list(model.parameters())
    if not parameters:
        raise UserError(f"{type(model).__name__} has no parameters to train")
    decoupled = config.optimizer == "adamw"
    settings: dict[str, Any] = {
        "lr": config.lr,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if takes_kernel("adam", parameters[0], flat_refusal(parameters)):
        return FlatAdam(parameters, **settings, decoupled=decoupled, clip=config.clip)
    fused = all(weight.is_floating_point() for weight in parameters)  # PyTorch fuses no complex ones
    return (AdamW if decoupled else Adam)(parameters, **settings, fused=fused)


def apply_gradients(model: nn.Module, optimizer: Optimizer, clip: float | None) -> Float[Tensor, ""]:
    """Take one step with gradients clipped to a total norm of `clip`; returns their norm before that."""
    if isinstance(optimizer, FlatAdam):
        optimizer.step()
        assert optimizer.norm is not None
        return optimizer.norm
    if clip is None:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    else:
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return norm.detach()


class Schedule:
    """PyTorch's learning-rate schedules, counted in optimiser steps or in epochs.

    `onecycle` is published: the rate rises for 30 % of the run (`warmup`) from lr / `start_factor` to lr,
    then falls to 1/10 000 of its start, both by a cosine, while the first beta goes 0.95 → 0.85 → 0.95.
    `cosine` falls to zero. `step` multiplies the rate by `decay` every `decay_epochs` epochs.

    Args:
        optimizer: whose rate is set.
        config: kind and length of the schedule.
        steps_per_epoch: optimiser steps in an epoch.
    """

    def __init__(self, optimizer: Optimizer, config: TrainingConfig, steps_per_epoch: int):
        self._every = config.schedule_every
        per_epoch = steps_per_epoch if self._every == "step" else 1
        total = config.epochs * per_epoch
        self._inner: LRScheduler | None = None
        if config.schedule == "onecycle":
            self._inner = OneCycleLR(
                optimizer,
                max_lr=config.lr,
                total_steps=total,
                pct_start=config.warmup,
                div_factor=config.start_factor,
            )
        elif config.schedule == "cosine":
            self._inner = CosineAnnealingLR(optimizer, T_max=total, eta_min=0)
        elif config.schedule == "step":
            self._inner = StepLR(optimizer, config.decay_epochs * per_epoch, config.decay)

    def after_step(self) -> None:
        if self._inner and self._every == "step":
            self._inner.step()

    def after_epoch(self) -> None:
        if self._inner and self._every == "epoch":
            self._inner.step()

    def state(self) -> dict[str, Any]:
        """Plain numbers and text, which JSON keeps exactly."""
        return self._inner.state_dict() if self._inner else {}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`; from {"moved_to": k} at step k of a schedule of another length."""
        if self._inner and "moved_to" in state:
            self._move_to(self._inner, state["moved_to"])
        elif self._inner:
            self._inner.load_state_dict(state)

    def _move_to(self, inner: LRScheduler, step: int) -> None:
        inner.last_epoch = step
        inner._step_count = step + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch expects these to be called by `step`
            closed_form = getattr(inner, "_get_closed_form_lr", None)
            rates = inner.get_lr() if closed_form is None else closed_form()  # OneCycleLR also sets the betas
        for group, rate in zip(inner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        inner._last_lr = list(rates)
