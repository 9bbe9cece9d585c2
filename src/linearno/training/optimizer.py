"""Adam and AdamW as the config says, and their state as named tensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from linearno.training.config import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Over all parameters, in PyTorch's fused form: one kernel a step instead of dozens."""
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


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
