"""Adam and AdamW as the config says, and their state as named tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from linearno.core.errors import UserError
from linearno.ops.backend import takes_kernel
from linearno.training.config import TrainingConfig
from linearno.training.flat_adam import FlatAdam


def make_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Over all parameters, few kernels a step: `FlatAdam` where it can run, else PyTorch's fused form."""
    parameters = list(model.parameters())
    if not parameters:
        raise UserError(f"{type(model).__name__} has no parameters to train")
    other = next((weight.dtype for weight in parameters if weight.dtype != torch.float32), None)
    if takes_kernel("adam", parameters[0], None if other is None else f"weights are {other}"):
        return FlatAdam(
            model.parameters(),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            decoupled=config.optimizer == "adamw",
            clip=config.clip,
        )
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(
        parameters,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=all(weight.is_floating_point() for weight in parameters),  # PyTorch has none for complex ones
    )


def apply_gradients(model: nn.Module, optimizer: Optimizer, clip: float | None) -> Float[Tensor, ""]:
    """One step; returns the norm of all gradients, which are scaled down to `clip` where it is larger."""
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


def pack_optimizer(optimizer: Optimizer, names: list[str]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Moments and step counts as `kind/parameter`, and the groups' settings, which a schedule changes."""
    state = optimizer.state_dict()
    moments = state["state"].items()
    tensors = {f"{kind}/{names[i]}": value for i, part in moments for kind, value in part.items()}
    return tensors, state["param_groups"]


def load_optimizer(
    optimizer: Optimizer, names: list[str], tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The opposite of `pack_optimizer`, also after a trip through JSON."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        state.setdefault(names.index(name), {})[kind] = value.clone()
    groups = [group | {"betas": tuple(group["betas"])} for group in groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
