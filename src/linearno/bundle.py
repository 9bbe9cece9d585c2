"""A trained surrogate as two files: `model.safetensors` and `model.json`. No pickle anywhere."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearno.core.artifacts import read_json, read_tensors, write_json, write_tensors
from linearno.core.device import Precision, autocast, resolve_device, set_matmul_precision
from linearno.core.errors import UserError, require
from linearno.core.provenance import commit, machine, versions
from linearno.data import FieldData, FieldSpec, Sample, Scaler, box_of, outside
from linearno.models import MODELS, CrossLinearNO
from linearno.nn import PointTransformer, Transformer
from linearno.ops import State
from linearno.streaming import OnChunk, Streamer
from linearno.training import Rollout, Task, predict
from linearno.training.progress import unfinished
from linearno.training.tasks import make_task

FORMAT = 1
OBSERVE = "a field is completed from observations: give their values and coordinates"
FEW = 6  # names to list one by one
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
        memory: int | str | None = None,
        on_chunk: OnChunk | None = None,
    ) -> Tensor:
        """The outputs (S, N, C) for inputs (S, N, C) at coords (N, X) or (S, N, X), in physical units.

        A model that marches in time takes `steps` steps, by default as many as in its training data. One that
        completes a field takes observations at `coords` and answers where its training data had their points.
        Meshes of different sizes are given one after another, inputs (T, C) at coords (T, X), with their
        offsets `segments` (S + 1,), and so answered: (T, C). With `memory` ("8GB") points are taken in chunks
        that need no more, so that a mesh may have any size; `on_chunk` then hears how far each call is.
        """
        channels = self._channels(steps)
        stream = None if memory is None else self.streamer(memory, on_chunk)
        if segments is not None and coords is not None:
            if stream is not None:
                raise UserError("meshes of any size are streamed one by one: leave segments or memory out")
            coords, inputs = self._question(coords, inputs, packed=True)
            spec = self.spec.model_copy(update={"grid": None})
            blank = coords.new_empty(len(coords), channels)
            return self.answer(FieldData(spec, coords, inputs, blank, segments), batch=batch)
        if isinstance(self.model, CrossLinearNO):
            if coords is None:
                raise UserError(OBSERVE)
            return self.encode(coords, inputs).query(coords if self.coords is None else self.coords)
        coords = self.coords if coords is None and segments is None else coords
        if coords is None:
            raise UserError(f"this model was trained on many meshes: give the coordinates {self.spec.coords}")
        coords, inputs = self._question(coords, inputs)
        self._warn_of_another_grid(coords)
        samples = len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1
        blank = coords.new_empty(samples, coords.shape[-2], channels)
        return self.answer(FieldData(self.spec, coords, inputs, blank), batch=batch, stream=stream)

    def answer(self, data: FieldData, *, batch: int = 1, stream: Streamer | None = None) -> Tensor:
        """The outputs for every sample of `data`; with `stream` in chunks of points."""

        def in_chunks(asked: Sample) -> Tensor:
            assert stream is not None
            return stream.forward(asked.coords, asked.inputs, time=asked.time)

        found = predict(
            self.model,
            self.scaler,
            data,
            batch=batch,
            device=self.device,
            precision=self.precision,
            task=self.task,
            seed=self.seed,
            ask=None if stream is None else in_chunks,
        )
        self._warn_of_infinities(found)
        return found

    def _warn_of_infinities(self, found: Tensor) -> None:
        """Say in the log that predictions are no numbers, and of a rollout from which step on."""
        finite = found.isfinite()
        if finite.all():
            return
        wrong = ~finite
        of_each = wrong.flatten(1).any(dim=1)  # sample, or point of packed meshes
        since = ""
        if self.task.frame is not None:
            channel = int(wrong.flatten(0, -2).any(dim=0).nonzero()[0])
            since = f" from step {channel // self.task.frame + 1} on"
        what = "samples" if found.dim() == 3 else "points"
        log.warning(
            "predictions are NaN or infinite%s in %d of %d %s", since, int(of_each.sum()), len(found), what
        )

    def streamer(self, memory: int | str = "2GB", on_chunk: OnChunk | None = None) -> Streamer:
        """The model in chunks of points, in physical units: `plan(points)`, `forward`, `encode`, `query`."""
        if not isinstance(self.model, PointTransformer):
            raise UserError(f"{type(self.model).__name__} takes its observations at once: leave memory out")
        return Streamer(self.model, memory, precision=self.precision, scaler=self.scaler, on_chunk=on_chunk)

    def _channels(self, steps: int | None) -> int:
        if steps is None:
            return len(self.spec.outputs)
        if not isinstance(self.task, Rollout):
            raise UserError(f"steps={steps}: this model does not march in time; leave it out")
        if steps < 1:
            raise UserError(f"steps={steps}: a rollout takes one step or more")
        return steps * self.task.channels

    def encode(
        self,
        coords: Tensor,
        inputs: Tensor | None = None,
        *,
        time: Tensor | None = None,
        memory: int | str = "2GB",
    ) -> "Field":
        """The fields that inputs (S, K, C) at coords (K, X) or (S, K, X) tell of, to be asked anywhere.

        For a model that completes fields these are observations, as many as there are. Any other takes them
        within `memory`, and at a `time` (S, 1) where it was trained with one.
        """
        if isinstance(self.model, CrossLinearNO) and inputs is None:
            raise UserError(OBSERVE)
        coords, inputs = self._question(coords, inputs)
        if isinstance(self.model, CrossLinearNO):
            self.warn_outside(coords, "observations")
        samples = len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1
        coords = self._of_each(coords, samples)
        if not isinstance(self.model, CrossLinearNO):
            return Field(self, self.streamer(memory).encode(coords, inputs, time=time), time)
        assert inputs is not None
        set_matmul_precision(self.precision)
        values = self.scaler.inputs.encode(inputs.to(self.scaler.inputs.mean))
        with torch.no_grad(), autocast(self.precision, self.device):
            return Field(self, [self.model.encode(self._places(coords), values)])

    def _warn_of_another_grid(self, coords: Tensor) -> None:
        """Say in the log that points are not those in whose order a model tied to a grid takes its fields."""
        if self.coords is None or not getattr(self.model, "tied_to_grid", False):
            return
        own, box = self.coords.to(coords), box_of(self.coords)
        near = 1e-3 * float((box[1] - box[0]).max())
        if coords.shape[-2:] == own.shape[-2:] and not torch.allclose(coords, own, rtol=0, atol=near):
            log.warning(
                "the coordinates given are not those of the grid that the model was trained on: it takes "
                "point k for point k of that grid; leave them out, or give the fields in its order"
            )

    def warn_outside(self, points: Tensor, what: str = "query points") -> None:
        """Say in the log that points lie where no training point did, if it is known where those lay."""
        if self.coords is None:
            return
        box = box_of(self.coords)
        count = int(outside(points.to(box), box).sum())
        if count:
            sides = zip(self.spec.coords, *box.tolist(), strict=True)
            where = ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in sides)
            log.warning(
                "%d of %d %s lie outside the box of the training points (%s): extrapolated",
                count,
                points.shape[:-1].numel(),
                what,
                where,
            )

    def _question(
        self, coords: Tensor, inputs: Tensor | None, *, packed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """What is asked, in the type of the model's numbers; an error where its parts do not fit it or each
        other."""
        asked = self.asked
        coords = self._numbers("coords", coords, asked.coords, (2,) if packed else (2, 3))
        if inputs is None and asked.inputs:
            raise UserError(f"this model takes inputs: give {_listed(asked.inputs)} at its points")
        if inputs is None:
            return coords, None
        inputs = self._numbers("inputs", inputs, asked.inputs, (2,) if packed else (3,))
        if coords.shape[-2] != inputs.shape[-2]:
            raise UserError(
                f"there are {coords.shape[-2]} coordinates for inputs at {inputs.shape[-2]} points"
            )
        if not packed:
            self._of_each(coords, len(inputs))
        return coords, inputs

    def _numbers(self, what: str, values: Tensor, fields: tuple[str, ...], dims: tuple[int, ...]) -> Tensor:
        if values.dim() not in dims or values.shape[-1] != len(fields):
            before = "points" if dims == (2,) else "samples, points" if dims == (3,) else "… points"
            expected = f"({before}, {len(fields)})" + (f": {_listed(fields)}" if fields else "")
            raise UserError(f"this model takes {what} {expected}, got {tuple(values.shape)}")
        values = values.to(self.scaler.coords.mean.dtype)
        if bad := int((~values.isfinite()).sum()):
            raise UserError(f"{bad} numbers of the {what} are NaN or infinite; leave such points out")
        return values

    def _of_each(self, points: Tensor, samples: int) -> Tensor:
        """Points (N, X) of all samples, or (S, N, X), as those of each."""
        if points.dim() == 3 and len(points) != samples:
            raise UserError(f"there are points for {len(points)} samples and inputs of {samples}")
        return points.expand(samples, -1, -1)

    def _places(self, points: Tensor) -> Tensor:
        """As the model takes them."""
        return self.scaler.coords.encode(points.to(self.scaler.coords.mean))

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
    """Fields of S samples, each known from what was encoded; to be asked anywhere, in physical units."""

    bundle: Bundle
    states: list[State]
    time: Tensor | None = None

    def query(self, points: Tensor, inputs: Tensor | None = None, *, chunk: int | None = None) -> Tensor:
        """The outputs (S, N, C) at points (N, X), (S, N, X) of each sample; at most `chunk` points at a time.

        A model that was trained with inputs needs them there, (S, N, C); one that completes fields does not.
        """
        bundle, model = self.bundle, self.bundle.model
        if chunk is not None and chunk < 1:
            raise UserError(f"chunk={chunk}: expected one point or more at a time")
        points = bundle._numbers("points", points, bundle.spec.coords, (2, 3))
        bundle.warn_outside(points)
        points = bundle._of_each(points, len(self.states[0].value))
        if not isinstance(model, CrossLinearNO):
            streamer = replace(bundle.streamer(), chunk=chunk)
            return streamer.query(points, self.states, inputs, time=self.time)
        if inputs is not None:
            raise UserError(f"{type(model).__name__} is asked at points alone: leave the inputs out")
        set_matmul_precision(bundle.precision)
        with torch.no_grad(), autocast(bundle.precision, bundle.device):
            places = bundle._places(points).split(chunk or 2**16, dim=1)
            answers = [model.query(part, self.states[0]).to(part.dtype) for part in places]
        return torch.cat([bundle.scaler.outputs.decode(answer).cpu() for answer in answers], dim=1)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names if len(names) <= FEW else (*names[:2], "…", names[-1]))


def load(folder: str | Path, device: str = "cpu") -> Bundle:
    """The surrogate that a run left in its folder, ready to predict."""
    folder = require(Path(folder), how=HOW)
    if (message := unfinished(folder)) is not None:
        raise UserError(message)
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
