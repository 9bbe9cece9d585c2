"""Train a model on arrays from Python. Axes: S samples, N points, X coordinates, C channels."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linearno.core.atomic_io import folder_lock, writable_folder
from linearno.core.device import resolve_device
from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec
from linearno.data.sample import RENAMED_FIELDS
from linearno.inference.bundle import Bundle, as_tensor
from linearno.inference.bundle_files import require_rebuildable
from linearno.initialization import initialize
from linearno.models import MODELS, build_model, self_fitting
from linearno.nn.protocol import spec_of
from linearno.training import EpochRecord, Task, TrainingConfig, TrainingSetup
from linearno.training import fit as training_fit

AXES = ("x", "y", "z")
BUSY = "another process is training in {root}; wait, or choose another folder"
DEFAULTS: dict[str, Any] = {"epochs": 100, "loss": {"scaled": True}}
FORMER_NAMES = {new: former for former, new in RENAMED_FIELDS.items()}
ADDED_DEFAULTS = {
    "warmup": 0.3,
    "decay": 0.5,
    "decay_epochs": 100,
    "patience": 0,
    "members": 1,
    "validation_seed": None,
}  # defaults of settings added later
PARTS = ("coords", "inputs", "targets", "surface")

Arrays = Mapping[str, "np.ndarray | Tensor | None"]


def fit(
    model: nn.Module | str,
    data: FieldData | Arrays | Sequence[Arrays],
    *,
    settings: Mapping[str, Any] | None = None,
    spec: FieldSpec | None = None,
    grid: tuple[int, ...] | None = None,
    task: Task | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    **training: Any,
) -> Bundle:
    """Train a model on your own arrays and return the surrogate, which predicts in the units of the data.

    Args:
        model: a registered name ("linearno"), or a registered module, which is trained in place.
        data: {"coords": …, "inputs": …, "targets": …}, arrays of numpy or torch: coords (N, X) shared by all
            samples or (S, N, X), inputs (S, N, C) if there are some, targets (S, N, C); a list of
            {"coords": (N, X), …}, one for each sample, if meshes differ in size; or a `FieldData`.
        settings: settings of the model, if it is given by name.
        spec: names and units of the fields; x, y, z, input_0, …, output_0, … by default.
        grid: (rows, columns) if the points are those of a grid in C order.
        task: how samples become model calls; outputs from inputs at the same points by default.
        out: folder for the bundle, history and checkpoints; an interrupted run in it is resumed.
        device: "auto", "cpu", "cuda", …
        seed: random seed of initial weights and order of samples.
        on_epoch: called after every epoch.
        training: fields of `TrainingConfig`: epochs=100, batch=4, lr=1e-3, validation=10, …

    >>> bundle = linearno.fit("linearno", {"coords": xy, "inputs": a, "targets": u}, epochs=50, batch=8)
    >>> bundle.predict(a_new)  # (S, N, C), numpy in and numpy out
    """
    resolved = resolve_device(device)
    train = data if isinstance(data, FieldData) else _field_data(data, spec, grid)
    train.check()
    name = model if isinstance(model, str) else spec_of(model).config.name
    bundle, setup = initialize(
        lambda spec: _resolve_model(model, settings, spec),
        train,
        TrainingConfig.make(DEFAULTS | ({"epochs": 1} if self_fitting(name) else {}) | training),
        task=task or Task(),
        seed=seed,
        recipe=f"fit/{name}",
    )
    if isinstance(model, str):  # a module may have been changed after its construction
        require_rebuildable(bundle, train, setup.config.points)
    if setup.config.members > 1:
        raise UserError("members: `linearno train` trains an ensemble; call fit once for each seed instead")
    fingerprint = _fingerprint(setup, train)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if out is None else out)
        if (folder / "config.yaml").exists():
            raise UserError(f"{folder} contains a run of `linearno train`; choose another folder")
        with folder_lock(writable_folder(folder), busy=BUSY):
            training_fit(setup, device=resolved, folder=folder, fingerprint=fingerprint, on_epoch=on_epoch)
            if out is not None:
                bundle.save(folder)
    bundle.model.eval()
    return bundle


def _resolve_model(model: nn.Module | str, settings: Mapping[str, Any] | None, spec: FieldSpec) -> nn.Module:
    """Build a model given by name, or check that the sizes of a module fit the data."""
    if isinstance(model, str):
        return build_model(MODELS[model].config.make({"name": model, **(settings or {})}), spec)
    if settings:
        raise UserError("settings apply to a model given by name; omit them for a module")
    for part, size in spec_of(model).sizes.items():
        if part != "grid" and size != len(getattr(spec, part)):
            raise UserError(f"the model expects {size} {part}, the data have {len(getattr(spec, part))}")
    return model


def _field_data(
    data: Arrays | Sequence[Arrays], spec: FieldSpec | None, grid: tuple[int, ...] | None
) -> FieldData:
    """`FieldData` from the arrays of all samples, or from a list of samples on different meshes."""
    samples: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if not samples or not all(isinstance(sample, Mapping) for sample in samples):
        raise UserError("data: expected {'coords': …, 'targets': …}, a list of such samples, or FieldData")
    tensors = [_tensors(sample) for sample in samples]
    spec = spec or _default_spec(tensors[0], grid)
    if isinstance(data, Mapping):
        parts = tensors[0]
        inputs, surface = parts.get("inputs"), parts.get("surface")
        return FieldData(spec, parts["coords"], inputs, parts["targets"], surface=surface)
    surfaces = [parts["surface"] for parts in tensors if "surface" in parts]
    batches = [Batch(parts["coords"], parts.get("inputs"), parts["targets"]) for parts in tensors]
    return FieldData.pack(spec, batches, surfaces or None)


def _tensors(sample: Arrays) -> dict[str, Tensor]:
    """Arrays as float32 tensors; an error if a part is unknown, missing or not finite."""
    if unknown := [name for name in sample if name not in PARTS]:
        raise UserError(f"data has {unknown[0]!r}; expected {', '.join(PARTS)}")
    if missing := [name for name in ("coords", "targets") if sample.get(name) is None]:
        raise UserError(
            f"data has no {missing[0]!r}; expected coords, targets and, if the model needs them, inputs"
        )
    tensors = {name: as_tensor(part) for name, part in sample.items() if part is not None}
    for name in tensors.keys() - {"surface"}:
        tensors[name] = tensors[name].float()
        if not tensors[name].isfinite().all():
            raise UserError(f"{name} contain NaN or infinite numbers")
    return tensors


def _default_spec(parts: Mapping[str, Tensor], grid: tuple[int, ...] | None) -> FieldSpec:
    """A spec with default field names, whose fields are all standardised."""

    def names(kind: str, part: str) -> tuple[str, ...]:
        return tuple(f"{kind}_{i}" for i in range(parts[part].shape[-1] if part in parts else 0))

    axes = parts["coords"].shape[-1]
    return FieldSpec.make(
        {
            "coords": AXES[:axes] if axes <= len(AXES) else names("coord", "coords"),
            "inputs": names("input", "inputs"),
            "outputs": names("output", "targets"),
            "grid": grid,
            "standardised": ("coords", "inputs", "outputs"),
        }
    )


def _fingerprint(setup: TrainingSetup, data: FieldData) -> str:
    """Hash of model, data and settings, by which a folder of another run is recognised.

    Settings are hashed under the names of the first version, so that interrupted runs of earlier versions
    resume.
    """
    digest = hashlib.sha256()
    settings = [
        {
            FORMER_NAMES.get(name, name): value
            for name, value in part.model_dump(mode="json").items()
            if (name, value) not in ADDED_DEFAULTS.items()
        }
        for part in (spec_of(setup.model).config, setup.config, setup.task, data.spec)
    ]
    digest.update(json.dumps([*settings, setup.seed]).encode())
    parts = (data.coords, data.inputs, data.targets, data.offsets, data.surface, *data.aux.values())
    for part in (*parts, *setup.model.state_dict().values()):
        plain = None if part is None else part.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(b"none" if plain is None else plain.numpy().tobytes())
    return digest.hexdigest()
