"""Import weights saved by published code as a run folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from linearno.core.atomic_io import writable_folder
from linearno.core.config import first_difference, write_yaml
from linearno.core.errors import UserError
from linearno.data import DATASETS, FieldSpec, Scaler
from linearno.inference.bundle import Bundle
from linearno.initialization import open_splits, untrained
from linearno.models import (
    MODELS,
    accepted_hints,
    build_model,
    from_published,
    infer_config,
    read_weights,
)
from linearno.nn.protocol import ModelSpec, settings_of, spec_of
from linearno.run_config import RunConfig

UNSCALED = "standard deviations from the mean"  # unit of a field whose scaler is unknown


def import_weights(weights: Path, config: RunConfig, folder: Path, *, with_data: bool) -> Bundle:
    """Write a run folder with published weights in the model of a recipe.

    Args:
        weights: state dict saved by the published code.
        config: configuration of the recipe.
        folder: run folder to write.
        with_data: fit the scaler on the training data of the recipe, as the published code does. Otherwise
            the model maps scaled fields to scaled fields, in units of standard deviations.
    """
    for name in ("config.yaml", "model.json"):
        if (folder / name).exists():
            raise UserError(f"{folder} already contains a run; choose another --out or remove it")
    tensors = read_weights(weights)
    config.require_task_fits_model()
    bundle = untrained(config, open_splits(config.data))[0] if with_data else _unscaled(config)
    try:
        _load_published(bundle.model, tensors, config.recipe)
    except UserError as error:
        raise UserError(f"{weights}: {error}") from None
    label = f"{config.recipe} with {weights.name}"
    bundle = replace(bundle, recipe=label)
    write_yaml(writable_folder(folder) / "config.yaml", config.model_copy(update={"recipe": label}))
    bundle.save(folder)
    return bundle


def unscaled_fields(spec: FieldSpec) -> list[str]:
    """Names of the fields whose scaler is unknown, since weights were imported without data."""
    return [name for name, unit in spec.units.items() if unit == UNSCALED]


def _unscaled(config: RunConfig) -> Bundle:
    """The untrained model for the layout of the published files, with an identity scaler."""
    layout_of = DATASETS[config.data.name].layout
    if layout_of is None:
        raise UserError(f"the fields of {config.data.name} are known from its files only: add --data FOLDER")
    layout = layout_of(config.data)
    parts = {part: getattr(layout.spec, part) for part in layout.spec.standardised}
    units = layout.spec.units | {name: UNSCALED for names in parts.values() for name in names}
    spec = layout.spec.model_copy(update={"standardised": (), "units": units})
    call = config.task.spec(spec)
    return Bundle(
        build_model(config.model, call),
        Scaler.blank(call),
        spec,
        layout.coords,
        config.recipe,
        config.seed,
        config.training.eval_precision,
        config.task,
    )


def _load_published(model: nn.Module, weights: Mapping[str, Tensor], recipe: str) -> None:
    """Load published weights into the model; an error names the first setting that differs."""
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UserError(f"{name} contains NaN or infinite numbers")
    inferred, spec = infer_config(weights), spec_of(model)
    name, hints = spec.config.name, _hints(spec)
    settings = spec.config.model_dump(include=set(inferred) - set(hints))
    _require_same(settings, {name: inferred[name] for name in settings}, recipe)
    hints = accepted_hints(weights, model=name, **hints)
    published = from_published(weights, model=name, **hints)
    _require_same(dict(spec.sizes), dict(spec_of(published).sizes), recipe)
    names = infer_config(weights, model=name, **hints).keys() - {"name"}
    expected, found = (each.config.model_dump(include=names) for each in (spec, spec_of(published)))
    _require_same(expected, found, recipe)
    state = published.state_dict()
    model.load_state_dict({name: state[name] for name in model.state_dict()})


def _hints(spec: ModelSpec) -> dict[str, Any]:
    """Settings of the model that the shapes of published weights do not determine."""
    arguments = dict(spec.sizes) | settings_of(spec.config)
    if (unified := arguments.get("unified")) is not None:
        arguments["unified_pos"] = unified.ref
    hints = {hint for format in MODELS[spec.config.name].published for hint in format.hints}
    return {hint: arguments.get(hint) for hint in hints}


def _require_same(expected: dict[str, Any], found: dict[str, Any], recipe: str) -> None:
    template = "{path} is {new!r} in these weights and {old!r} in " + recipe
    expected, found = (
        {name: _one_for_all(value) for name, value in settings.items()} for settings in (expected, found)
    )
    if difference := first_difference(expected, found, template=template):
        raise UserError(
            f"weights of another model: {difference}; choose its recipe, or change this one with --set"
        )


def _one_for_all(value: Any) -> Any:
    """12 for (12, 12): settings such as the modes of each axis may be given either way."""
    numbers = value if isinstance(value, list | tuple) else ()
    return numbers[0] if numbers and all(number == numbers[0] for number in numbers) else value
