"""All that changes while a run trains, and nothing else: what a checkpoint holds. Axis: K steps an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from linearno.core.errors import UserError
from linearno.training.ema import Ema
from linearno.training.optimizer import load_optimizer, pack_optimizer
from linearno.training.schedule import Schedule

COUNTERS = ("epoch", "step", "lr", "seconds", "best")


@dataclass
class TrainState:
    """Between two steps, this and the data determine the rest of the run to the bit (on a CPU)."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    ema: Ema | None
    losses: Float[Tensor, "K"]  # mean per sample of each step of the running epoch; zero where to come
    grad_norms: Float[Tensor, "K"]
    epoch: int = 0  # finished
    step: int = 0  # finished in the running epoch
    lr: float = 0.0  # of the last step
    seconds: float = 0.0  # spent in the running epoch
    best: float | None = None  # validation error
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.losses.device

    @property
    def total_steps(self) -> int:
        return self.epoch * len(self.losses) + self.step

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As named tensors and plain values."""
        moments, groups = pack_optimizer(self.optimizer, self._names())
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimizer": moments,
            "ema": self.ema.weights if self.ema else {},
            "best": self.best_weights,
            "epoch": {"losses": self.losses, "grad_norms": self.grad_norms},
            "rng": self._random_state(),
        }
        tensors = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
        values = {name: getattr(self, name) for name in COUNTERS}
        return tensors, values | {"optimizer": groups, "schedule": self.schedule.state()}

    def unpack(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """The opposite of `pack`, in place."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, name = key.split("/", 1)
            parts.setdefault(part, {})[name] = value
        try:
            self.model.load_state_dict(parts["model"])
            load_optimizer(self.optimizer, self._names(), parts.get("optimizer", {}), values["optimizer"])
            self.schedule.load(values["schedule"])
            for name, weight in self.ema.weights.items() if self.ema else ():
                weight.copy_(parts["ema"][name])
            self.losses.copy_(parts["epoch"]["losses"])
            self.grad_norms.copy_(parts["epoch"]["grad_norms"])
            self.best_weights = {k: v.to(self.device) for k, v in parts.get("best", {}).items()}
            for name in COUNTERS:
                setattr(self, name, values[name])
            self._set_random_state(parts["rng"])
        except (KeyError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the checkpoint does not fit this model ({reason}); remove it") from None

    def keep_if_best(self, validation: float) -> None:
        if self.best is None or validation < self.best:
            self.best = validation
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def load_result(self) -> None:
        """Leave the model with the weights that the run was for: the best, the averaged, or the last."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)
        elif self.ema:
            self.ema.give_to(self.model)

    def _names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    def _random_state(self) -> dict[str, Tensor]:
        cuda = {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state()} | cuda

    def _set_random_state(self, state: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self.device)
