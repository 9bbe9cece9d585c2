"""A trained surrogate, ready to predict in physical units.

Axes: S samples, N points, X coordinates, C channels.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from linearno.core.device import autocast, resolve_device, set_matmul_precision
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec, box_of, outside_box
from linearno.inference.bundle_files import BundleParts, read_bundle, write_bundle
from linearno.inference.streaming import OnChunk, Streamer
from linearno.nn.protocol import Queryable, Streamable, completes, fixed_grid, needs_of, unsupported
from linearno.ops.ragged import offsets_of
from linearno.training import Rollout, predict
from linearno.training.progress import unfinished

OBSERVE = "a field is completed from observations: give their values and coordinates"
MAX_LISTED_NAMES = 6
DEFAULT_CHUNK = 2**16  # query points per call

log = logging.getLogger(__name__)
A = TypeVar("A", Tensor, ndarray)


@dataclass(frozen=True)
class Bundle(BundleParts):
    """A model with all that is needed to predict in physical units; see `BundleParts` for its fields."""

    @property
    def asked(self) -> FieldSpec:
        """Inputs and outputs of one model call (differs from `spec` for rollouts and reconstruction)."""
        return self.task.spec(self.spec)

    @property
    def device(self) -> torch.device:
        return self.scaler.coords.mean.device

    def predict(
        self,
        inputs: A | None = None,
        coords: A | None = None,
        *,
        batch: int = 1,
        steps: int | None = None,
        segments: A | Sequence[int] | None = None,
        memory: int | str | None = None,
        on_chunk: OnChunk | None = None,
        aux: Mapping[str, Any] | None = None,
    ) -> A:
        """Outputs (S, N, C) for inputs (S, N, C) at coords (N, X) or (S, N, X), in physical units.

        Arrays of numpy give arrays of numpy, tensors give tensors on the CPU.

        Args:
            inputs: input channels; None for a model that takes none.
            coords: points; None for those that all training samples shared.
            batch: samples per call of the model.
            steps: frames to predict, of a model that marches in time; None: as many as in its training data.
            segments: offsets (S + 1,) of meshes of different sizes, given one after another: inputs (T, C) at
                coords (T, X), outputs (T, C).
            memory: take points in chunks that need no more ("8GB"), for a mesh of any size.
            on_chunk: called with points done and points to do, when `memory` is given.
            aux: auxiliary fields by name that the model needs, such as {"edges": (2, E)}; edges that differ
                between samples as a list, one for each.

        A model that reconstructs fields takes observations at `coords` and predicts at the points of its
        training data.
        """
        arrays = as_tensor(inputs), as_tensor(coords), as_tensor(segments)
        found = self._predict(*arrays, batch, steps, memory, on_chunk, aux)
        return _like(found, inputs, coords)

    def _predict(
        self,
        inputs: Tensor | None,
        coords: Tensor | None,
        segments: Tensor | None,
        batch: int,
        steps: int | None,
        memory: int | str | None,
        on_chunk: OnChunk | None,
        aux: Mapping[str, Any] | None,
    ) -> Tensor:
        channels = self._channels(steps)
        stream = None if memory is None else self.streamer(memory, on_chunk)
        if segments is not None and coords is not None:
            if stream is not None:
                raise UserError("meshes of any size are streamed one by one: leave segments or memory out")
            coords, inputs = self._question(coords, inputs, packed=True)
            blank = coords.new_empty(len(coords), channels)
            spec = self._spec_with(aux or {}).model_copy(update={"grid": None})
            given, offsets = self._aux(aux or {})
            data = FieldData(spec, coords, inputs, blank, segments, aux=given, edge_offsets=offsets)
            return self._checked_answer(data, batch)
        if completes(self.model):
            if coords is None:
                raise UserError(OBSERVE)
            return self.encode(coords, inputs).query(coords if self.coords is None else self.coords)
        aux = dict(aux or {})
        if coords is None and segments is None:
            coords, aux = self.coords, {**self.aux, **aux}
        if coords is None:
            raise UserError(f"this model was trained on many meshes: give the coordinates {self.spec.coords}")
        coords, inputs = self._question(coords, inputs)
        self._warn_of_another_grid(coords)
        samples = len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1
        blank = coords.new_empty(samples, coords.shape[-2], channels)
        spec, (given, offsets) = self._spec_with(aux), self._aux(aux)
        data = FieldData(spec, coords, inputs, blank, aux=given, edge_offsets=offsets)
        return self._checked_answer(data, batch, stream)

    def _checked_answer(self, data: FieldData, batch: int, stream: Streamer | None = None) -> Tensor:
        if batch < 1:
            raise UserError(f"batch={batch}: expected one sample or more at a time")
        for name, kind in data.spec.aux.items():
            if kind == "edge":
                data.require_edges(name, data.coords.shape[-2])
        return self.answer(data, batch=batch, stream=stream)

    def _aux(self, aux: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Auxiliary fields as tensors in the model's type; edges given as a list are joined, with offsets."""
        given, offsets = {}, {}
        for name, part in aux.items():
            if self.spec.aux.get(name) == "edge":
                each = [as_tensor(one) for one in (part if isinstance(part, list | tuple) else [part])]
                given[name] = torch.cat(each, dim=1).long()
                if isinstance(part, list | tuple):
                    offsets[name] = offsets_of([one.shape[1] for one in each])
            else:
                given[name] = as_tensor(part).to(self.scaler.coords.mean.dtype)
        return given, offsets

    def _spec_with(self, aux: Mapping[str, Any]) -> FieldSpec:
        """The fields of a prediction: of the auxiliary ones, those that are given."""
        if unknown := [name for name in aux if name not in self.spec.aux]:
            known = ", ".join(self.spec.aux) or "none"
            raise UserError(f"{unknown[0]!r} is no auxiliary field of this model's data; those are: {known}")
        kinds = {name: self.spec.aux[name] for name in aux}
        missing = [name for name in needs_of(self.model) or () if name in self.spec.aux and name not in aux]
        if missing:
            raise UserError(f"this model needs {missing[0]}: give aux={{{missing[0]!r}: …}}")
        return self.spec.model_copy(update={"aux": kinds})

    def answer(self, data: FieldData, *, batch: int = 1, stream: Streamer | None = None) -> Tensor:
        """The outputs for every sample of `data`; with `stream` in chunks of points."""

        def in_chunks(asked: Batch) -> Tensor:
            assert stream is not None
            positions = self._positions(asked.coords)
            return stream.forward(asked.coords, asked.inputs, time=asked.time, positions=positions)

        found = predict(
            self.model,
            self.scaler,
            data,
            batch=batch,
            device=self.device,
            precision=self.precision,
            task=self.task,
            seed=self.seed,
            predictor=None if stream is None else in_chunks,
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
        if completes(self.model):
            raise UserError(f"{type(self.model).__name__} takes its observations at once: leave memory out")
        if not isinstance(self.model, Streamable):
            raise unsupported(self.model, "streaming: leave memory out")
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
        self, coords: Any, inputs: Any = None, *, time: Tensor | None = None, memory: int | str = "2GB"
    ) -> "Field":
        """Encode samples once, to be queried at any points: inputs (S, K, C) at coords (K, X) or (S, K, X).

        For a model that reconstructs fields these are observations, as many as there are. Any other model
        takes them within `memory`, and at a `time` (S, 1) if it was trained with one.
        """
        coords, inputs = as_tensor(coords), as_tensor(inputs)
        if completes(self.model) and inputs is None:
            raise UserError(OBSERVE)
        coords, inputs = self._question(coords, inputs)
        if completes(self.model):
            self.warn_outside(coords, "observations")
        samples = len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1
        coords = self._of_each(coords, samples)
        if not completes(self.model):
            if not isinstance(self.model, Streamable):
                raise unsupported(self.model, "queries at other points")
            positions = self._positions(coords)
            states: Any = self.streamer(memory).encode(coords, inputs, time=time, positions=positions)
            return Field(self, states, samples, time)
        assert inputs is not None
        seen = self._places(coords), self.scaler.inputs.encode(inputs.to(self.scaler.inputs.mean))
        if not isinstance(self.model, Queryable):
            return Field(self, seen, samples)
        set_matmul_precision(self.precision)
        with torch.no_grad(), autocast(self.precision, self.device):
            return Field(self, self.model.encode(*seen), samples)

    def _warn_of_another_grid(self, coords: Tensor) -> None:
        """Say in the log that points are not those in whose order a model tied to a grid takes its fields."""
        if self.coords is None or fixed_grid(self.model) is None:
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
        count = int(outside_box(points.to(box), box).sum())
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

    def _positions(self, coords: Tensor) -> Tensor | None:
        """Unscaled coordinates, for a model that takes them in addition to scaled ones."""
        return coords if "positions" in (needs_of(self.model) or ()) else None

    def _places(self, points: Tensor) -> Tensor:
        """As the model takes them."""
        return self.scaler.coords.encode(points.to(self.scaler.coords.mean))

    def save(self, folder: str | Path) -> None:
        """Write `model.safetensors` and `model.json`; `load` reads them."""
        write_bundle(Path(folder), self)


@dataclass(frozen=True)
class Field:
    """Encoded fields of S samples, to be queried at any points in physical units.

    `states` are what the model encoded; for a model that reconstructs fields without an encoder, the scaled
    observations.
    """

    bundle: Bundle
    states: Any
    samples: int
    time: Tensor | None = None

    def query(self, points: A, inputs: A | None = None, *, chunk: int | None = None) -> A:
        """Outputs (S, N, C) at points (N, X), or (S, N, X) of each sample; at most `chunk` points at a time.

        A model trained with inputs needs them there, (S, N, C); one that reconstructs fields does not.
        Arrays of numpy give arrays of numpy.
        """
        return _like(self._query(as_tensor(points), as_tensor(inputs), chunk), points, inputs)

    def _query(self, points: Tensor, inputs: Tensor | None, chunk: int | None) -> Tensor:
        bundle, model = self.bundle, self.bundle.model
        if chunk is not None and chunk < 1:
            raise UserError(f"chunk={chunk}: expected one point or more at a time")
        points = bundle._numbers("points", points, bundle.spec.coords, (2, 3))
        bundle.warn_outside(points)
        points = bundle._of_each(points, self.samples)
        if not completes(model):
            positions = bundle._positions(points)
            streamer = replace(bundle.streamer(), chunk=chunk)
            return streamer.query(points, self.states, inputs, time=self.time, positions=positions)
        if inputs is not None:
            raise UserError(f"{type(model).__name__} is asked at points alone: leave the inputs out")
        set_matmul_precision(bundle.precision)
        with torch.no_grad(), autocast(bundle.precision, bundle.device):
            places = bundle._places(points).split(chunk or DEFAULT_CHUNK, dim=1)
            answers = [self._at(part).to(part.dtype) for part in places]
        return torch.cat([bundle.scaler.outputs.decode(answer).cpu() for answer in answers], dim=1)

    def _at(self, points: Tensor) -> Tensor:
        model = self.bundle.model
        if isinstance(model, Queryable):
            return model.query(points, self.states)
        return model(*self.states, points=points)


def load(folder: str | Path, device: str = "cpu") -> Bundle:
    """The surrogate that a run left in its folder, ready to predict."""
    if (message := unfinished(Path(folder))) is not None:
        raise UserError(message)
    bundle, where = Bundle(**vars(read_bundle(Path(folder)))), resolve_device(device)
    bundle.model.to(where).eval()
    bundle.scaler.to(where)
    return bundle


def as_tensor(values: Any) -> Any:
    """Arrays of numpy, and nested lists, as tensors that share their memory where they can."""
    if values is None or isinstance(values, Tensor):
        return values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that may not be written to: nothing here does
        return torch.as_tensor(np.ascontiguousarray(values))


def _like(found: Tensor, *given: Any) -> Any:
    return found.numpy() if any(isinstance(part, ndarray) for part in given) else found


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names if len(names) <= MAX_LISTED_NAMES else (*names[:2], "…", names[-1]))
