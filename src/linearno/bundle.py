"""A trained surrogate as two files: `model.safetensors` and `model.json`. No pickle anywhere."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearno.core.artifacts import read_json, read_tensors, write_json, write_tensors
from linearno.core.device import Precision, autocast, resolve_device, set_matmul_precision
from linearno.core.errors import UserError, require
from linearno.core.provenance import commit, machine, versions
from linearno.data import FieldData, FieldSpec, Scaler, box_of, outside
from linearno.models import MODELS, CrossLinearNO
from linearno.nn import Transformer
from linearno.ops import State
from linearno.training import Rollout, Task, predict
from linearno.training.tasks import make_task

FORMAT = 1
HOW = "give a run folder, as `linearno train` writes it"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bundle:
    """A model with all that is needed to ask it in physical units.

    `coords` are the points that all training samples shared, where they did: a question may leave them out.
    """

    model: Transformer
    scaler: Scaler
    spec: FieldSpec
    coords: Tensor | None
    recipe: str
    seed: int
    precision: Precision = "fp32"
    task: Task = field(default_factory=Task)

    @property
    def asked(self) -> FieldSpec:
        """What a question holds and what one call of the model gives."""
        return self.task.spec(self.spec)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def predict(
        self,
        inputs: Tensor | None = None,
        coords: Tensor | None = None,
        *,
        batch: int = 1,
        steps: int | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The outputs (S, N, C) for inputs (S, N, C) at coords (N, X) or (S, N, X), in physical units.

        A model that marches in time takes `steps` steps, by default as many as in its training data. One that
        completes a field takes observations at `coords` and answers where its training data had their points.
        Meshes of different sizes are given one after another, inputs (T, C) at coords (T, X), with their
        offsets `segments` (S + 1,), and so answered: (T, C).
        """
        if segments is not None and coords is not None:
            spec = self.spec.model_copy(update={"grid": None})
            blank = coords.new_empty(len(coords), self._channels(steps))
            return self.answer(FieldData(spec, coords, inputs, blank, segments), batch=batch)
        if isinstance(self.model, CrossLinearNO):
            if inputs is None or coords is None:
                raise UserError("a field is completed from observations: give their values and coordinates")
            return self.encode(coords, inputs).query(coords if self.coords is None else self.coords)
        coords = self.coords if coords is None and segments is None else coords
        if coords is None:
            raise UserError(f"this model was trained on many meshes: give the coordinates {self.spec.coords}")
        samples = len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1
        blank = coords.new_empty(samples, coords.shape[-2], self._channels(steps))
        return self.answer(FieldData(self.spec, coords, inputs, blank), batch=batch)

    def answer(self, data: FieldData, *, batch: int = 1) -> Tensor:
        """The outputs for every sample of `data`."""
        return predict(
            self.model,
            self.scaler,
            data,
            batch=batch,
            device=self.device,
            precision=self.precision,
            task=self.task,
            seed=self.seed,
        )

    def _channels(self, steps: int | None) -> int:
        if steps is None:
            return len(self.spec.outputs)
        if not isinstance(self.task, Rollout):
            raise UserError(f"steps={steps}: this model does not march in time; leave it out")
        if steps < 1:
            raise UserError(f"steps={steps}: a rollout takes one step or more")
        return steps * self.task.channels

    @torch.no_grad()
    def encode(self, coords: Tensor, inputs: Tensor) -> "Field":
        """The fields that observations inputs (S, K, C) at coords (K, X) or (S, K, X) tell of."""
        model = self.model
        if not isinstance(model, CrossLinearNO):
            raise UserError(f"{type(model).__name__} answers where its inputs are: ask it with predict")
        if inputs.dim() != 3:
            raise UserError(f"observations are (samples, points, channels), got {tuple(inputs.shape)}")
        if coords.shape[-2] != inputs.shape[-2]:
            raise UserError(f"there are {coords.shape[-2]} coordinates for {inputs.shape[-2]} observations")
        set_matmul_precision(self.precision)
        places = self._places(coords, len(inputs))
        values = self.scaler.inputs.encode(inputs.to(self.scaler.inputs.mean))
        with autocast(self.precision, self.device):
            return Field(self, model, model.encode(places, values))

    def warn_outside(self, points: Tensor) -> None:
        """Say in the log that points lie where no training point did, if it is known where those lay."""
        if self.coords is None:
            return
        box = box_of(self.coords)
        count = int(outside(points.to(box), box).sum())
        if count:
            sides = zip(self.spec.coords, *box.tolist(), strict=True)
            where = ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in sides)
            log.warning(
                "%d of %d query points lie outside the box of the training points (%s): extrapolated",
                count,
                points.shape[:-1].numel(),
                where,
            )

    def _places(self, points: Tensor, samples: int) -> Tensor:
        """Points (N, X) of all samples or (S, N, X) of each, as the model takes them."""
        if points.dim() == 3 and len(points) != samples:
            raise UserError(f"there are points for {len(points)} samples and observations of {samples}")
        return self.scaler.coords.encode(points.to(self.scaler.coords.mean)).expand(samples, -1, -1)

    def save(self, folder: Path) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"scaler.{name}": tensor for name, tensor in self.scaler.state_dict().items()}
        if self.coords is not None:
            tensors["coords"] = self.coords
        write_tensors(folder / "model.safetensors", tensors)
        write_json(folder / "model.json", self.card())

    def card(self) -> dict[str, Any]:
        """All but the numbers."""
        settings = self.model.config.model_dump(mode="json")
        name = settings.pop("name")
        return {
            "format": FORMAT,
            "recipe": self.recipe,
            "model": {"name": name, **self.model.sizes, "settings": settings},
            "spec": self.spec.model_dump(mode="json"),
            "task": self.task.model_dump(mode="json"),
            "precision": self.precision,
            "seed": self.seed,
            "commit": commit(),
            "machine": machine(self.device),
            "versions": versions(),
        }


@dataclass(frozen=True)
class Field:
    """Fields of S samples, each known from its observations; to be asked anywhere, in physical units."""

    bundle: Bundle
    model: CrossLinearNO
    state: State

    @torch.no_grad()
    def query(self, points: Tensor, *, chunk: int = 2**16) -> Tensor:
        """The outputs (S, N, C) at points (N, X), or (S, N, X) of each sample; `chunk` points at a time."""
        bundle = self.bundle
        bundle.warn_outside(points)
        set_matmul_precision(bundle.precision)
        parts = bundle._places(points, len(self.state.value)).split(chunk, dim=1)
        with autocast(bundle.precision, bundle.device):
            answers = [self.model.query(part, self.state).to(part.dtype) for part in parts]
        return torch.cat([bundle.scaler.outputs.decode(answer).cpu() for answer in answers], dim=1)


def load(folder: str | Path, device: str = "cpu") -> Bundle:
    """The surrogate that a run left in its folder, ready to predict."""
    folder = require(Path(folder), how=HOW)
    card = read_json(folder / "model.json", how=HOW)
    if not isinstance(card, dict) or "format" not in card:
        raise UserError(f"{folder / 'model.json'} does not describe a model; {HOW}")
    if card["format"] != FORMAT:
        raise UserError(f"{folder} has format {card['format']}, this version reads {FORMAT}")
    tensors = read_tensors(folder / "model.safetensors", how=HOW)
    entry, spec = card["model"], FieldSpec.make(card["spec"])
    sizes = {part: entry[part] for part in ("coords", "inputs", "outputs")}
    model = MODELS[entry["name"]](**sizes, **entry["settings"])
    task = make_task(card.get("task"))
    scaler = Scaler.blank(task.spec(spec))
    try:
        model.load_state_dict(_part(tensors, "model."))
        scaler.load_state_dict(_part(tensors, "scaler."))
    except RuntimeError:
        raise UserError(f"{folder}: the weights do not fit the model that model.json describes") from None
    where = resolve_device(device)
    return Bundle(
        model.to(where).eval(),
        scaler.to(where),
        spec,
        tensors.get("coords"),
        card["recipe"],
        card["seed"],
        card["precision"],
        task,
    )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
