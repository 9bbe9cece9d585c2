"""A trained surrogate as two files without pickle: `model.safetensors` and `model.json`.

`model.json` is checked against the header of `model.safetensors` before memory is allocated.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from linearno.core.atomic_io import (
    read_json,
    read_tensors,
    tensor_shapes,
    write_json,
    write_tensors,
)
from linearno.core.config import Config, read_yaml_values
from linearno.core.device import Precision
from linearno.core.errors import UserError, brief, require
from linearno.core.provenance import commit, machine, versions
from linearno.data import FieldData, FieldSpec, Scaler
from linearno.inference.intervals import Intervals
from linearno.inference.training_ranges import TrainingRanges
from linearno.meshes.config import MeshFields
from linearno.models import MODELS, rebuild_model
from linearno.nn.ensemble import Ensemble
from linearno.nn.protocol import SelfFitting, fixed_grid, model_name, single_model, spec_of
from linearno.ops import backend
from linearno.training import Task
from linearno.training.predict import predict_batch, probe_sample
from linearno.training.tasks import make_task

FORMAT = 1
REAL_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPARE_PARAMETERS = 1000  # that a constructor may make and replace, in addition to ten times those of the file
MISFIT = "the weights do not fit the model that model.json describes"
HOW = "give a run folder, as `linearno train` writes it"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundleParts:
    """The parts of a bundle.

    Args:
        model: a registered model.
        scaler: between physical units and the numbers of the model.
        spec: fields of the data.
        coords: points (N, X) that all training samples shared, if they did: the default of a prediction.
        recipe: name of the recipe.
        seed: of the run.
        precision: of predictions.
        task: how samples become calls of the model.
        aux: auxiliary fields that all training samples shared, such as the edges of their mesh.
        mesh_fields: how inputs are read from a mesh file, if the model was trained on such files.
        ranges: what it was trained on, if those were mesh files.
        intervals: prediction intervals, if they were calibrated.
    """

    model: nn.Module
    scaler: Scaler
    spec: FieldSpec
    coords: Tensor | None
    recipe: str
    seed: int
    precision: Precision = "fp32"
    task: Task = field(default_factory=Task)
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    mesh_fields: MeshFields | None = None
    ranges: TrainingRanges | None = None
    intervals: Intervals | None = None


class ModelCard(Config):
    """A model in `model.json`: its registered name, sizes and settings."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    settings: dict[str, Any]
    defined_in: str | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        return self.model_extra or {}


class BundleCard(Config):
    """What is read of `model.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    recipe: str
    model: ModelCard
    spec: FieldSpec
    task: dict[str, Any] | None = None
    precision: Precision = "fp32"
    seed: NonNegativeInt = 0
    mesh_fields: MeshFields | None = None
    ranges: TrainingRanges | None = None
    intervals: Intervals | None = None
    members: PositiveInt = 1


def write_bundle(folder: Path, parts: BundleParts) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in parts.model.state_dict().items()}
    tensors |= {f"scaler.{name}": tensor for name, tensor in parts.scaler.state_dict().items()}
    tensors |= {f"aux.{name}": tensor for name, tensor in parts.aux.items()}
    if parts.coords is not None:
        tensors["coords"] = parts.coords
    card = make_card(parts)
    write_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "model.json", card)


def make_card(parts: BundleParts) -> dict[str, Any]:
    """The contents of `model.json`."""
    config, sizes, _ = spec_of(parts.model)
    settings = config.model_dump(mode="json")
    name = settings.pop("name")
    cls = type(single_model(parts.model))
    return {
        "format": FORMAT,
        "recipe": parts.recipe,
        "model": {
            "name": name,
            **sizes,
            "settings": settings,
            "defined_in": f"{cls.__module__}.{cls.__qualname__}",
        },
        "spec": parts.spec.model_dump(mode="json"),
        "task": parts.task.model_dump(mode="json"),
        "precision": parts.precision,
        "seed": parts.seed,
        "mesh_fields": None if parts.mesh_fields is None else parts.mesh_fields.model_dump(mode="json"),
        "ranges": None if parts.ranges is None else parts.ranges.model_dump(mode="json"),
        "intervals": None if parts.intervals is None else parts.intervals.model_dump(mode="json"),
        "members": len(parts.model.ensemble_members) if isinstance(parts.model, Ensemble) else 1,
        "commit": commit(),
        "machine": machine(parts.scaler.coords.mean.device),
        "versions": versions(),
    }


def read_bundle(folder: Path) -> BundleParts:
    """The parts of a bundle, on the CPU; an error if a file is missing, damaged or inconsistent."""
    path, weights = require(folder, how=HOW) / "model.json", folder / "model.safetensors"
    card = _read_card(path)
    try:
        task = make_task(card.task)
        call_spec = task.spec(card.spec)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    shapes = tensor_shapes(weights, how=HOW)
    model = _build(path, card, call_spec, _part(shapes, "model."))
    tensors = read_tensors(weights, how=HOW)
    scaler, coords = Scaler.blank(call_spec), tensors.get("coords")
    _fill(folder, model, _part(tensors, "model."), MISFIT)
    _fill(folder, scaler, _part(tensors, "scaler."), "its scaling does not fit the fields of model.json")
    _require_numbers(weights, tensors)
    _require_coords(path, card.spec, coords)
    return BundleParts(
        model,
        scaler,
        card.spec,
        coords,
        card.recipe,
        card.seed,
        card.precision,
        task,
        _part(tensors, "aux."),
        card.mesh_fields if "mesh_fields" in card.model_fields_set else _mesh_fields_of_run(folder),
        card.ranges,
        card.intervals,
    )


def _mesh_fields_of_run(folder: Path) -> MeshFields | None:
    """Those of a bundle without the key `mesh_fields`, which earlier versions wrote, from its run folder."""
    path = folder / "config.yaml"
    data = read_yaml_values(path).get("data") if path.exists() else None
    if not isinstance(data, dict) or data.get("name") != "cases":
        return None
    return MeshFields.make({name: data[name] for name in MeshFields.model_fields if name in data})


def _read_card(path: Path) -> BundleCard:
    values = read_json(path, how=HOW)
    if not isinstance(values, dict) or "format" not in values:
        raise UserError(f"{path} does not describe a model; {HOW}")
    if values["format"] != FORMAT:
        raise UserError(f"{path.parent} has format {values['format']!r:.40}, this version reads {FORMAT}")
    try:
        card = BundleCard.make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if card.model.name not in MODELS:
        origin = card.model.defined_in or ""
        module = f" (module {brief(origin.rpartition('.')[0])})" if origin else ""
        raise UserError(
            f"{path.parent} needs the model {brief(card.model.name)}{module}, which is not registered: "
            "import the module that defines it first, or give its file with --import FILE.py"
        )
    return card


def _build(path: Path, card: BundleCard, spec: FieldSpec, shapes: Mapping[str, Any]) -> nn.Module:
    """The model with fresh weights; an error before memory is allocated if its tensors are others.

    Args:
        path: of the card.
        card: describes the model.
        spec: inputs and outputs of one model call.
        shapes: of the tensors in the file, by name.
    """
    entry, sizes = MODELS[card.model.name], card.model.sizes
    for name in ("coords", "inputs", "outputs"):
        if name in entry.sizes and sizes.get(name) != len(getattr(spec, name)):
            raise UserError(
                f"{path}: model.{name} is {sizes.get(name)!r:.40}, the fields are {len(getattr(spec, name))}"
            )
    misfit = f"{path.parent}: {MISFIT}"

    def build() -> nn.Module:
        try:
            with _parameter_limit(len(shapes)), _size_errors():
                model = _rebuilt(card.model.name, sizes, card.model.settings, card.seed)
                if card.members > 1:
                    more = (
                        _rebuilt(card.model.name, sizes, card.model.settings, card.seed + number)
                        for number in range(1, min(card.members, len(shapes) + 1))
                    )
                    model = Ensemble([model, *more])
        except _TooLarge:
            raise UserError(misfit) from None
        except UserError as error:
            raise UserError(f"{path}: model.{error}") from None
        if isinstance(model, SelfFitting):
            try:
                model.allocate(shapes)
            except UserError as error:
                raise UserError(f"{misfit}: {error}") from None
        return model

    def compare(described: nn.Module) -> nn.Module:
        if grid := fixed_grid(described):
            _require_grid(path, grid, card.spec)
        found = {name: tuple(part.shape) for name, part in described.state_dict().items()}
        if found != shapes:
            odd = next(iter(dict(found.items() ^ shapes.items())))
            raise UserError(f"{misfit} ({brief(odd)})")
        return described

    try:
        with torch.device("meta"):
            compare(build())
    except UserError:
        raise
    except Exception as error:  # a constructor that reads values, which meta tensors do not have
        if entry.cls.__module__.startswith("linearno."):
            raise
        log.debug("%s cannot be built on the meta device: %s", card.model.name, error)
    return compare(build())


def _rebuilt(name: str, sizes: Mapping[str, Any], settings: Mapping[str, Any], seed: int) -> nn.Module:
    """The model with the initial weights that the seed gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return rebuild_model(name, sizes, settings)


@torch.no_grad()
def require_rebuildable(parts: BundleParts, train: FieldData, points: int | None = None) -> None:
    """An error if a user's own model would predict otherwise after it is saved and loaded.

    Compares predictions for the first sample of `train`, or for its first `points` points.
    """
    model, name = parts.model, model_name(parts.model)
    if type(model).__module__.startswith("linearno.") or isinstance(model, SelfFitting):
        return
    card = json.loads(json.dumps(make_card(parts)["model"]))
    sizes = {size: card[size] for size in MODELS[name].sizes}
    try:
        copy = _rebuilt(name, sizes, card["settings"], parts.seed)
        copy.load_state_dict(model.state_dict())
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(
            f"model {name!r} could not be loaded again from its saved weights: {reason}"
        ) from None
    device, found = parts.scaler.coords.mean.device, []
    call = probe_sample(parts.task, train, device, points)
    for module in (model, copy.to(device)):
        training = module.training
        module.eval()
        with torch.random.fork_rng(devices=[]), backend("plain"):
            torch.manual_seed(0)
            found.append(predict_batch(module, parts.scaler, call, "fp32"))
        module.train(training)
    if not torch.equal(*found):
        raise UserError(
            f"model {name!r} predicts otherwise when it is rebuilt with the same weights: register what its "
            "constructor draws or computes as a buffer, which is saved"
        )


def _require_grid(path: Path, grid: tuple[int, ...], spec: FieldSpec) -> None:
    """Refuse a grid of another size, of which a model allocates arrays."""
    if spec.grid is not None and tuple(grid) != spec.grid:
        raise UserError(f"{path}: model.settings.grid is {tuple(grid)}, the fields are on {spec.grid}")


class _TooLarge(Exception):
    """A model that is larger than its file."""


@contextmanager
def _size_errors() -> Iterator[None]:
    """Turn errors about sizes that no tensor can have into `_TooLarge`."""
    try:
        yield
    except (OverflowError, MemoryError) as error:
        raise _TooLarge from error
    except (RuntimeError, TypeError) as error:
        if not any(word in str(error).lower() for word in ("overflow", "allocate", "out of memory")):
            raise
        raise _TooLarge from error


@contextmanager
def _parameter_limit(expected: int) -> Iterator[None]:
    """Stop a constructor that makes far more parameters than expected: a depth of 200,000, say."""
    count = 0

    def registered(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal count
        count += parameter is not None
        if count > SPARE_PARAMETERS + 10 * expected:
            raise _TooLarge

    handle = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()


def _fill(folder: Path, module: nn.Module, tensors: Mapping[str, Tensor], misfit: str) -> None:
    own = module.state_dict()
    for name, tensor in tensors.items():
        if name not in own or _kind(own[name]) != _kind(tensor):
            raise UserError(f"{folder}: {misfit} ({name} is {tensor.dtype})")
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError:
        raise UserError(f"{folder}: {misfit}") from None


def _kind(tensor: Tensor) -> str:
    """The kind of a tensor's numbers: weights may be narrower than the model's, but not of another kind."""
    if tensor.is_complex():
        return "complex"
    if tensor.is_floating_point():
        return "real" if tensor.dtype in REAL_TYPES else "tiny"
    return "whole"


def _require_numbers(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {name} holds NaN or infinite numbers; {HOW}")
        if name.startswith("scaler.") and name.endswith(".std") and not (tensor > 0).all():
            raise UserError(f"{path}: {name} holds deviations that are not positive; {HOW}")


def _require_coords(path: Path, spec: FieldSpec, coords: Tensor | None) -> None:
    if coords is None:
        return
    points = None if spec.grid is None else prod(spec.grid)
    if coords.dim() != 2 or coords.shape[1] != len(spec.coords) or points not in (None, len(coords)):
        raise UserError(f"{path.parent}: coords are {tuple(coords.shape)}, which does not fit {path.name}")


def _part(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
