"""Checkpoints: the training state as tensors and JSON, made the latest by one atomic write.

    checkpoint/step-00001250/state.safetensors, state.json      complete before anything points to it
    checkpoint/latest                                           the name of that folder

A kill at any moment leaves `latest` pointing to a complete checkpoint, the old or the new.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from linearno.core.atomic_io import read_json, read_tensors, sha256, write_json, write_tensors, write_text
from linearno.core.config import first_difference
from linearno.core.errors import UserError
from linearno.training.config import TrainingConfig
from linearno.training.trainer import TrainState

FORMAT = 1
COUNTERS = ("epoch", "step", "lr", "seconds", "best")  # of a `TrainState`
DAMAGED = "it is damaged: remove the folder to train from the start"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are.
        fingerprint: identifies the whole configuration of the run.
        settings: the part of it that an error names if it differs.
    """

    folder: Path
    fingerprint: str
    settings: Mapping[str, Any]

    def write(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        name = f"step-{step:08d}"
        state = self.folder / name / "state.safetensors"
        write_tensors(state, tensors)
        head = {"format": FORMAT, "fingerprint": self.fingerprint, "settings": self.settings}
        write_json(self.folder / name / "state.json", head | {"sha256": sha256(state), "values": values})
        write_text(self.folder / "latest", name + "\n")
        for old in self.folder.glob("step-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The latest checkpoint, verified; None if there is none."""
        pointer = self.folder / "latest"
        if not pointer.exists():
            return None
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if not re.fullmatch(r"step-\d{8,}", name):
            raise UserError(f"{pointer} names no checkpoint; {DAMAGED}")
        document = read_json(self.folder / name / "state.json", how=DAMAGED)
        if not isinstance(document, dict) or "format" not in document:
            raise UserError(f"{self.folder / name / 'state.json'} is not a checkpoint; {DAMAGED}")
        self._refuse_another_run(document)
        state = self.folder / name / "state.safetensors"
        tensors = read_tensors(state, how=DAMAGED)
        if sha256(state) != document.get("sha256"):
            raise UserError(f"{state} is not what was written there; {DAMAGED}")
        return tensors, document.get("values", {})

    def extend(self, fingerprint: str, settings: Mapping[str, Any]) -> None:
        """Let the latest checkpoint be continued under a configuration with more epochs.

        The schedule continues at the same step of the longer one.
        """
        pointer = self.folder / "latest"
        if not pointer.exists():
            raise UserError(f"{self.folder} holds no checkpoint to continue from")
        path = self.folder / pointer.read_text(encoding="utf-8").strip() / "state.json"
        document = read_json(path, how=DAMAGED)
        if document.get("fingerprint") == fingerprint:
            return  # done by an earlier call that was interrupted
        self._refuse_another_run(document)
        values = document["values"]
        done = values["schedule"].get("last_epoch")
        schedule = {} if done is None else {"moved_to": done}
        head = {"fingerprint": fingerprint, "settings": settings, "values": values | {"schedule": schedule}}
        write_json(path, document | head)

    def _refuse_another_run(self, document: Mapping[str, Any]) -> None:
        if document["format"] != FORMAT:
            raise UserError(
                f"{self.folder} has checkpoint format {document['format']!r}, this version reads {FORMAT}; "
                "resume it with the version that wrote it, or remove it"
            )
        if document.get("fingerprint") != self.fingerprint:
            what = first_difference(document.get("settings", {}), self.settings)
            raise UserError(
                f"{self.folder.parent} holds a run of another configuration: "
                f"{what or 'its data or its model differs'}; choose another --out or remove it"
            )


def checkpoint_settings(seed: int, config: TrainingConfig) -> dict[str, Any]:
    """The settings that a checkpoint stores to name a difference."""
    return {"seed": seed, "training": config.model_dump(mode="json")}


def pack_state(state: TrainState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The training state as named tensors and plain values."""
    moments, groups = pack_optimizer(state.optimizer, [name for name, _ in state.model.named_parameters()])
    cuda = state.device.type == "cuda"
    parts: dict[str, Mapping[str, Tensor]] = {
        "model": state.model.state_dict(),
        "optimizer": moments,
        "ema": state.ema.weights if state.ema else {},
        "best": state.best_weights,
        "epoch": {"losses": state.losses, "grad_norms": state.grad_norms},
        "rng": {
            "cpu": torch.get_rng_state(),
            **({"cuda": torch.cuda.get_rng_state(state.device)} if cuda else {}),
        },
    }
    tensors = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
    values = {name: getattr(state, name) for name in COUNTERS}
    return tensors, values | {"optimizer": groups, "schedule": state.schedule.state()}


def unpack_state(state: TrainState, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """The inverse of `pack_state`, in place."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        part, name = key.split("/", 1)
        parts.setdefault(part, {})[name] = value
    names = [name for name, _ in state.model.named_parameters()]
    try:
        state.model.load_state_dict(parts["model"])
        load_optimizer(state.optimizer, names, parts.get("optimizer", {}), values["optimizer"])
        state.schedule.load(values["schedule"])
        for name, weight in state.ema.weights.items() if state.ema else ():
            weight.copy_(parts["ema"][name])
        state.losses.copy_(parts["epoch"]["losses"])
        state.grad_norms.copy_(parts["epoch"]["grad_norms"])
        state.best_weights = {name: part.to(state.device) for name, part in parts.get("best", {}).items()}
        for name in COUNTERS:
            setattr(state, name, values[name])
        torch.set_rng_state(parts["rng"]["cpu"])
        if "cuda" in parts["rng"] and state.device.type == "cuda":
            torch.cuda.set_rng_state(parts["rng"]["cuda"], state.device)
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the checkpoint does not fit this model ({reason}); remove it") from None


def pack_optimizer(optimizer: Optimizer, names: list[str]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Moments and step counts as `kind/parameter`, and the groups' settings, which a schedule changes."""
    state = optimizer.state_dict()
    moments = state["state"].items()
    tensors = {f"{kind}/{names[i]}": value for i, part in moments for kind, value in part.items()}
    return tensors, state["param_groups"]


def load_optimizer(
    optimizer: Optimizer, names: list[str], tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The inverse of `pack_optimizer`, in place."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        state.setdefault(names.index(name), {})[kind] = value.clone()
    groups = [group | {"betas": tuple(group["betas"])} for group in groups]  # JSON knows no tuples
    optimizer.load_state_dict({"state": state, "param_groups": groups})
