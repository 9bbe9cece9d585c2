"""Models rebuilt from weights that published implementations saved. Each model declares its own formats."""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linearno.core.errors import UserError, require
from linearno.models.registry import MODELS, ModelEntry, PublishedFormat


def from_published(
    weights: Mapping[str, Tensor] | str | Path, *, model: str | None = None, **hints: Any
) -> nn.Module:
    """A model with published weights.

    Args:
        weights: a state dict, or the file that `torch.save` wrote it to.
        model: registered name of the model; None to recognise it by its weights.
        **hints: what the shapes of the weights do not determine, according to the model: `grid`, the mesh of
            a model with convolutions or with a unified position on a mesh, (rows, columns[, layers]);
            `unified_pos`, reference points per axis (`ref`) of a model trained with `unified_pos=1`;
            `coords`, how many of the input features are coordinates (default: all). A hint that the shapes
            do determine, such as `heads`, is checked.

    >>> model = from_published("weights.pt", heads=8, grid=(85, 85))
    """
    tensors = weights if isinstance(weights, Mapping) else read_weights(Path(weights))
    entry, format, arguments = _recognise(tensors, model, hints)
    for name, value in hints.items():
        if value is None or name in format.hints:
            continue
        if name not in arguments:
            known = ", ".join(format.hints) or "none"
            raise UserError(f"{name}: published weights of {entry.name!r} take no such hint; hints: {known}")
        if arguments[name] != value:
            raise UserError(f"{name}={value} was given, but the weights have {arguments[name]} {name}")
    built = entry.cls(**arguments)
    _load(built, tensors, format)
    return built


def infer_config(weights: Mapping[str, Tensor], *, model: str | None = None, **hints: Any) -> dict[str, Any]:
    """The registered name and the constructor arguments that published weights and hints determine."""
    entry, _, arguments = _recognise(weights, model, hints)
    return {"name": entry.name} | arguments


def accepted_hints(
    weights: Mapping[str, Tensor], *, model: str | None = None, **hints: Any
) -> dict[str, Any]:
    """Those of the hints that the format of the weights takes."""
    _, format, _ = _recognise(weights, model, hints)
    return {name: value for name, value in hints.items() if name in format.hints}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict that `torch.save` wrote. Only tensors are unpickled: nothing in the file runs."""
    require(path, how="give the file that torch.save wrote the state dict to")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old pickles
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # broken bytes raise anything
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"asks for {refused[1]!r}, which is no part of plain weights, and was not opened"
            raise UserError(f"{path} {what}; save model.state_dict(), not the model") from None
        raise UserError(f"{path} is truncated or no file that torch.save wrote") from None
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError(f"{path} holds no state dict; save model.state_dict(), not the model")
    return loaded


def _recognise(
    weights: Mapping[str, Tensor], model: str | None, hints: Mapping[str, Any]
) -> tuple[ModelEntry, PublishedFormat, dict[str, Any]]:
    """The one model and format that the weights fit, and the constructor arguments they determine."""
    entries = [MODELS[name] for name in ([model] if model else MODELS)]
    entries = [entry for entry in entries if entry.published]
    hints = {name: value for name, value in hints.items() if value is not None}
    fits = []
    for entry in entries:
        for format in entry.published:
            try:
                arguments = format.infer(weights, hints)
            except KeyError as error:
                raise UserError(
                    f"these weights of a {entry.name} lack {error}; save all of model.state_dict()"
                ) from None
            except (IndexError, ValueError, ZeroDivisionError):
                raise UserError(f"these weights of a {entry.name} do not have the published shapes") from None
            if arguments is not None:
                fits.append((entry, format, arguments))
    if not fits:
        known, some = ", ".join(entry.name for entry in entries) or "none", ", ".join(list(weights)[:3])
        raise UserError(
            f"these are not weights of a published model (found {some} …); known formats: {known}"
        )
    if len(fits) > 1:
        names = ", ".join(entry.name for entry, _, _ in fits)
        raise UserError(f"these weights fit several published models, {names}: choose one with model=")
    return fits[0]


def _load(model: nn.Module, weights: Mapping[str, Tensor], format: PublishedFormat) -> None:
    """Copy weights into the model under its own names."""
    renamed: dict[str, Tensor] = {}
    unused: dict[str, nn.Parameter] = {}
    for name, tensor in weights.items():
        if re.search(format.unused, name):
            unused[name.replace(".", "_")] = nn.Parameter(tensor.clone())
            continue
        for pattern, replacement in format.names:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    ours = format.convert(renamed) if format.convert else renamed
    known = model.state_dict()
    if ours.keys() != known.keys():
        odd = sorted(ours.keys() ^ known.keys())
        raise UserError(f"the weights do not fit any published variant: {', '.join(odd[:4])}")
    for name, tensor in ours.items():
        if tensor.shape != known[name].shape:
            shapes = f"{tuple(tensor.shape)}, expected {tuple(known[name].shape)}"
            raise UserError(f"the weights do not fit any published variant: {name} is {shapes}")
    model.load_state_dict(ours)
    if unused:
        model.unused = nn.ParameterDict(unused)
