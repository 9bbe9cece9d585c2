"""A trained surrogate that predicts in physical units.

Axes: S samples, N points, X coordinates, C channels, T points of packed meshes, E edges.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from linearno.core.device import autocast, resolve_device, set_matmul_precision
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec
from linearno.inference.bundle_files import BundleParts, read_bundle, write_bundle
from linearno.inference.guard import warn_of_another_grid, warn_of_infinities, warn_outside
from linearno.inference.manifest import require_published_hashes
from linearno.inference.streaming import OnChunk, Streamer
from linearno.models import MODELS, probabilistic
from linearno.nn.ensemble import Ensemble
from linearno.nn.protocol import (
    GRID_NEED,
    Probabilistic,
    Queryable,
    Streamable,
    completes,
    fixed_grid,
    fixed_points,
    needs_of,
    single_model,
    takes_segments,
    unsupported,
)
from linearno.ops.ragged import offsets_of
from linearno.training import Rollout, predict
from linearno.training.predict import model_call
from linearno.training.progress import unfinished

NO_OBSERVATIONS = "a field is reconstructed from observations: give their values and coordinates"
MAX_LISTED_NAMES = 6
DEFAULT_CHUNK = 2**16  # query points per call

A = TypeVar("A", Tensor, ndarray)


@dataclass(frozen=True)
class Bundle(BundleParts):
    """A model with all that it needs to predict in physical units; `BundleParts` lists its fields."""

    @property
    def call_spec(self) -> FieldSpec:
        """Inputs and outputs of one model call (differs from `spec` for rollouts and reconstruction)."""
        return self.task.spec(self.spec)

    @property
    def device(self) -> torch.device:
        return self.scaler.coords.mean.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers in physical units; that of the weights may differ."""
        return self.scaler.coords.mean.dtype

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

        NumPy arrays give NumPy arrays, tensors give tensors on the CPU. A model that reconstructs fields
        takes observations at `coords` and predicts at the points of its training data.

        Args:
            inputs: input channels; None for a model without inputs.
            coords: points; None for those that all training samples shared.
            batch: samples per call of the model.
            steps: frames of a rollout; None: as many as in the training data.
            segments: offsets (S + 1,) of packed meshes: inputs (T, C) at coords (T, X) give outputs (T, C).
            memory: limit ("8GB") within which points are taken in chunks, for a mesh of any size.
            on_chunk: called with points done and points to do, if `memory` is given.
            aux: auxiliary fields of the model by name, such as {"edges": (2, E)}; edges that differ between
                samples as a list with one array for each.
        """
        channels = self._channels(steps)
        if memory is not None and segments is None and self.members:
            return self.predict_with_std(inputs, coords, memory=memory)[0]
        stream = None if memory is None else self.streamer(memory, on_chunk)
        if segments is not None and stream is not None:
            raise UserError("packed meshes are not streamed: leave segments or memory out")
        if segments is not None and not takes_segments(self.model):
            raise unsupported(self.model, "packed meshes: leave segments out")
        if batch < 1:
            raise UserError(f"batch={batch}: expected one sample or more at a time")
        points, values, offsets = as_tensor(coords), as_tensor(inputs), as_tensor(segments)
        if completes(self.model) and offsets is None:
            if points is None:
                raise UserError(NO_OBSERVATIONS)
            found = self.encode(points, values).query(points if self.coords is None else self.coords)
        else:
            data = self._field_data(values, points, offsets, channels, aux or {})
            found = self.predict_data(data, batch=batch, stream=stream)
        return _like(found, inputs, coords)

    def predict_with_std(
        self,
        inputs: A | None = None,
        coords: A | None = None,
        *,
        batch: int = 1,
        memory: int | str | None = None,
    ) -> tuple[A, A]:
        """Mean and standard deviation of the outputs, each (S, N, C), in physical units.

        For a model with a standard deviation, such as "pod-gp", and for an ensemble; the mean is what
        `predict` returns.

        Args:
            inputs: input channels (S, N, C); None for a model without inputs.
            coords: points (N, X) or (S, N, X); None for those that all training samples shared.
            batch: samples per call of the model.
            memory: limit within which the members of an ensemble take points in chunks.
        """
        values, points = as_tensor(inputs), as_tensor(coords)
        if memory is not None:
            if not (members := self.members):
                raise UserError("memory: only an ensemble has a standard deviation in chunks; leave it out")
            found = torch.stack([one.predict(values, points, batch=batch, memory=memory) for one in members])
            mean, std = found.mean(dim=0), found.std(dim=0)
        else:
            data = self._field_data(values, points, None, self._channels(None), {})
            mean, std = self.predict_data_with_std(data, batch=batch)
        return _like(mean, inputs, coords), _like(std, inputs, coords)

    def predict_data_with_std(self, data: FieldData, *, batch: int = 1) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation for every sample of `data`, as `predict_data`."""
        model, scaler = self.model, self.scaler
        if not isinstance(model, Probabilistic):
            raise unsupported(self.model, "standard deviations", [n for n in MODELS if probabilistic(n)])
        if self.task.name != "direct":
            raise UserError(f"task={self.task.name}: a standard deviation is known for the direct task alone")

        def mean_and_std(part: Batch) -> Tensor:
            part = part.to(self.device)
            with autocast(self.precision, self.device):
                (points, values), more = model_call(self.model, scaler, part)
                mean, std = (each.to(self.dtype) for each in model.mean_and_std(points, values, **more))
            return torch.cat([scaler.outputs.decode(mean), std * scaler.outputs.std], dim=-1)

        found = predict(
            self.model,
            scaler,
            data,
            batch=batch,
            device=self.device,
            precision=self.precision,
            predictor=mean_and_std,
        )
        mean, std = found.chunk(2, dim=-1)
        return mean, std

    @property
    def members(self) -> "list[Bundle]":
        """The members of an ensemble, each with its own model; none for a single model."""
        models = self.model.ensemble_members if isinstance(self.model, Ensemble) else ()
        return [replace(self, model=model, intervals=None) for model in models]

    def _field_data(
        self,
        inputs: Tensor | None,
        coords: Tensor | None,
        segments: Tensor | None,
        channels: int,
        aux: Mapping[str, Any],
    ) -> FieldData:
        """Samples without targets; an error if their parts do not fit the model or each other."""
        if coords is None and segments is None:
            coords, aux = self.coords, {**self.aux, **aux}
        if coords is None:
            raise UserError(f"this model was trained on many meshes: give the coordinates {self.spec.coords}")
        spec, (aux, edge_offsets) = self._spec_with(aux), self._aux_tensors(aux)
        coords, inputs = self._require_fit(coords, inputs, packed=segments is not None)
        if segments is None:
            points = fixed_points(self.model)
            if points not in (None, coords.shape[-2]):
                raise UserError(
                    f"this model takes the {points} points of its training data in their order, got "
                    f"{coords.shape[-2]} points"
                )
            if self.coords is not None and (points is not None or fixed_grid(self.model) is not None):
                warn_of_another_grid(coords, self.coords)
            blank = coords.new_empty(_sample_count(coords, inputs), coords.shape[-2], channels)
        else:
            spec, blank = spec.model_copy(update={"grid": None}), coords.new_empty(len(coords), channels)
        data = FieldData(spec, coords, inputs, blank, segments, aux=aux, edge_offsets=edge_offsets)
        for name, kind in spec.aux.items():
            if kind == "edge":
                data.require_edges(name, coords.shape[-2])
        return data

    def predict_data(self, data: FieldData, *, batch: int = 1, stream: Streamer | None = None) -> Tensor:
        """Outputs for every sample of `data`; with `stream` in chunks of points."""

        def in_chunks(part: Batch) -> Tensor:
            assert stream is not None
            positions = self._positions(part.coords)
            return stream.forward(part.coords, part.inputs, time=part.time, positions=positions)

        weights = _weight_dtype(self.model)
        with nullcontext() if weights == self.dtype else _inputs_cast_to(weights, self.model):
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
        warn_of_infinities(found, self.task.frame)
        return found

    def _aux_tensors(self, aux: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Auxiliary fields as tensors; edges given as a list are joined, with their offsets."""
        tensors, offsets = {}, {}
        for name, part in aux.items():
            if self.spec.aux[name] == "edge":
                each = [as_tensor(one) for one in (part if isinstance(part, list | tuple) else [part])]
                tensors[name] = torch.cat(each, dim=1).long()
                if isinstance(part, list | tuple):
                    offsets[name] = offsets_of([one.shape[1] for one in each])
            else:
                tensors[name] = as_tensor(part).to(self.dtype)
        return tensors, offsets

    def _spec_with(self, aux: Mapping[str, Any]) -> FieldSpec:
        """`spec` with the auxiliary fields that are given."""
        if unknown := [name for name in aux if name not in self.spec.aux]:
            known = ", ".join(self.spec.aux) or "none"
            raise UserError(f"{unknown[0]!r} is no auxiliary field of this model's data; those are: {known}")
        missing = [name for name in needs_of(self.model) or () if name in self.spec.aux and name not in aux]
        if missing:
            raise UserError(f"this model needs {missing[0]}: give aux={{{missing[0]!r}: …}}")
        return self.spec.model_copy(update={"aux": {name: self.spec.aux[name] for name in aux}})

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
    ) -> "EncodedSamples":
        """Encode samples once, to be queried at any points.

        Args:
            coords: (K, X) or (S, K, X).
            inputs: (S, K, C); of a model that reconstructs fields, any number of observations.
            time: (S, 1), of a streamable model that was trained with one.
            memory: limit within which a streamable model takes the points.
        """
        coords, inputs = as_tensor(coords), as_tensor(inputs)
        if members := self.members:
            parts = [one.encode(coords, inputs, time=time, memory=memory) for one in members]
            return EncodedMembers(self, parts, parts[0].samples)
        if completes(self.model) and inputs is None:
            raise UserError(NO_OBSERVATIONS)
        coords, inputs = self._require_fit(coords, inputs)
        if completes(self.model):
            self.warn_outside(coords, "observations")
        samples = _sample_count(coords, inputs)
        coords = self._for_each_sample(coords, samples)
        if self.streams_queries:
            positions = self._positions(coords)
            states: Any = self.streamer(memory).encode(coords, inputs, time=time, positions=positions)
            return EncodedSamples(self, states, samples, time)
        self._require_queryable()
        states = self.scaled(coords), None
        if inputs is not None:
            encoded = self.scaler.inputs.encode(inputs.to(self.scaler.inputs.mean))
            states = states[0], encoded.to(states[0].dtype)
        if isinstance(self.model, Queryable):
            set_matmul_precision(self.precision)
            positions = self._positions(coords)
            more = {} if positions is None else {"positions": self._as_weights(positions)}
            with torch.no_grad(), autocast(self.precision, self.device):
                states = self.model.encode(*states, **more)
        return EncodedSamples(self, states, samples)

    @property
    def streams_queries(self) -> bool:
        """Whether samples are encoded and queried in chunks of points."""
        return isinstance(single_model(self.model), Streamable) and not completes(self.model)

    def _require_queryable(self) -> None:
        if not completes(self.model) and not isinstance(self.model, Queryable):
            raise unsupported(self.model, "queries at other points: it has no `encode` and `query`")
        own = [need for need in needs_of(self.model) or () if need not in ("points", "positions", GRID_NEED)]
        if own:
            raise unsupported(self.model, f"queries at other points: its `query` does not take {own[0]}")

    def warn_outside(self, points: Tensor, what: str = "query points") -> None:
        """Log the number of points outside the box of the training points, if all samples shared these."""
        if self.coords is not None:
            warn_outside(points, self.coords, self.spec.coords, what)

    def _require_fit(
        self, coords: Tensor, inputs: Tensor | None, *, packed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Coordinates and inputs in the type of the scaler; an error if they do not fit the model."""
        spec = self.call_spec
        coords = self.require_numbers("coords", coords, spec.coords, (2,) if packed else (2, 3))
        if inputs is None:
            if spec.inputs:
                raise UserError(f"this model takes inputs: give {_listed(spec.inputs)} at its points")
            return coords, None
        inputs = self.require_numbers("inputs", inputs, spec.inputs, (2,) if packed else (3,))
        if coords.shape[-2] != inputs.shape[-2]:
            raise UserError(
                f"there are {coords.shape[-2]} coordinates for inputs at {inputs.shape[-2]} points"
            )
        if not packed:
            self._for_each_sample(coords, len(inputs))
        return coords, inputs

    def require_numbers(
        self, what: str, values: Tensor, fields: tuple[str, ...], dims: tuple[int, ...]
    ) -> Tensor:
        """`values` in the type of the scaler; an error if they are not finite or of another shape."""
        if values.dim() not in dims or values.shape[-1] != len(fields):
            leading = "points" if dims == (2,) else "samples, points" if dims == (3,) else "… points"
            expected = f"({leading}, {len(fields)})" + (f": {_listed(fields)}" if fields else "")
            raise UserError(f"this model takes {what} {expected}, got {tuple(values.shape)}")
        values = values.to(self.dtype)
        if bad := int((~values.isfinite()).sum()):
            raise UserError(f"{bad} numbers of the {what} are NaN or infinite; leave such points out")
        return values

    def _for_each_sample(self, points: Tensor, samples: int) -> Tensor:
        """Points (N, X) or (S, N, X) as (S, N, X)."""
        if points.dim() == 3 and len(points) != samples:
            raise UserError(f"there are points for {len(points)} samples and inputs of {samples}")
        return points.expand(samples, -1, -1)

    def _positions(self, coords: Tensor) -> Tensor | None:
        """Unscaled coordinates, for a model that takes them in addition to scaled ones."""
        return coords if "positions" in (needs_of(self.model) or ()) else None

    def scaled(self, points: Tensor) -> Tensor:
        """Points as the model takes them: scaled, on its device and in the type of its weights."""
        return self._as_weights(self.scaler.coords.encode(points.to(self.scaler.coords.mean)))

    def _as_weights(self, points: Tensor) -> Tensor:
        return points.to(self.device, _weight_dtype(self.model))

    def query_points(self, points: Tensor) -> Tensor:
        """Points as the model is queried at them: unscaled, if it takes positions, else scaled."""
        return self.scaled(points) if self._positions(points) is None else self._as_weights(points)

    def save(self, folder: str | Path) -> None:
        """Write `model.safetensors` and `model.json`; `load` reads them."""
        write_bundle(Path(folder), self)


@dataclass(frozen=True)
class EncodedSamples:
    """Samples that were encoded, to be queried at any points in physical units.

    Args:
        bundle: the surrogate that encoded them.
        states: what the model encoded; for a model that reconstructs fields without an encoder, the scaled
            observations.
        samples: number S of samples.
        time: (S, 1), if the samples were encoded at one.
    """

    bundle: Bundle
    states: Any
    samples: int
    time: Tensor | None = None

    def query(self, points: A, inputs: A | None = None, *, chunk: int | None = None) -> A:
        """Outputs (S, N, C) at points (N, X) of all samples, or (S, N, X); NumPy arrays give NumPy arrays.

        Args:
            points: coordinates.
            inputs: input channels (S, N, C) at the points, for a streamable model with inputs.
            chunk: points per call.
        """
        return _like(self._query(as_tensor(points), as_tensor(inputs), chunk), points, inputs)

    def _query(self, points: Tensor, inputs: Tensor | None, chunk: int | None) -> Tensor:
        bundle = self.bundle
        if chunk is not None and chunk < 1:
            raise UserError(f"chunk={chunk}: expected one point or more at a time")
        points = bundle.require_numbers("points", points, bundle.spec.coords, (2, 3))
        bundle.warn_outside(points)
        points = bundle._for_each_sample(points, self.samples)
        if bundle.streams_queries:
            streamer, positions = replace(bundle.streamer(), chunk=chunk), bundle._positions(points)
            return streamer.query(points, self.states, inputs, time=self.time, positions=positions)
        if inputs is not None:
            raise UserError(f"{type(bundle.model).__name__} is queried at points alone: leave the inputs out")
        set_matmul_precision(bundle.precision)
        with torch.no_grad(), autocast(bundle.precision, bundle.device):
            parts = bundle.query_points(points).split(chunk or DEFAULT_CHUNK, dim=1)
            outputs = [self._query_chunk(part).to(bundle.dtype) for part in parts]
        return torch.cat([bundle.scaler.outputs.decode(output).cpu() for output in outputs], dim=1)

    def _query_chunk(self, points: Tensor) -> Tensor:
        model = self.bundle.model
        if isinstance(model, Queryable):
            return model.query(points, self.states)
        return model(*self.states, points=points)


@dataclass(frozen=True)
class EncodedMembers(EncodedSamples):
    """Samples that each member of an ensemble has encoded, in `states`; a query gives the mean."""

    def _query(self, points: Tensor, inputs: Tensor | None, chunk: int | None) -> Tensor:
        return torch.stack([part._query(points, inputs, chunk) for part in self.states]).mean(dim=0)


def load(folder: str | Path, device: str = "cpu") -> Bundle:
    """The surrogate in a run folder, or a published bundle, whose hashes are then checked."""
    if (message := unfinished(Path(folder))) is not None:
        raise UserError(message)
    require_published_hashes(Path(folder))
    bundle, where = Bundle(**vars(read_bundle(Path(folder)))), resolve_device(device)
    bundle.model.to(where).eval()
    bundle.scaler.to(where)
    return bundle


def as_tensor(values: Any) -> Any:
    """NumPy arrays and nested lists as tensors, which share their memory if possible."""
    if values is None or isinstance(values, Tensor):
        return values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about read-only arrays, which nothing here writes to
        return torch.as_tensor(np.ascontiguousarray(values))


def _weight_dtype(model: nn.Module) -> torch.dtype:
    dtypes = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(dtypes, torch.get_default_dtype())


@contextmanager
def _inputs_cast_to(dtype: torch.dtype, model: nn.Module) -> Iterator[None]:
    """Cast arguments of `model` to the type of its weights, which was changed after training."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def cast_all(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}

    handle = model.register_forward_pre_hook(cast_all, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _sample_count(coords: Tensor, inputs: Tensor | None) -> int:
    return len(inputs) if inputs is not None else len(coords) if coords.dim() == 3 else 1


def _like(found: Tensor, *given: Any) -> Any:
    return found.numpy() if any(isinstance(part, ndarray) for part in given) else found


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names if len(names) <= MAX_LISTED_NAMES else (*names[:2], "…", names[-1]))
