"""Models by name, built for the data at hand."""

import inspect
from collections.abc import Callable
from typing import TypeVar

from linearno.core.registry import Registry
from linearno.data import FieldSpec
from linearno.nn import ModelConfig, Transformer

MODELS: Registry[Callable[..., Transformer]] = Registry("model")
CONFIGS: Registry[type[ModelConfig]] = Registry("model")

M = TypeVar("M", bound=type[Transformer])


def model(name: str, config: type[ModelConfig]) -> Callable[[M], M]:
    """Register a model and its config; help() and completion then show the settings as keywords."""

    def add(cls: M) -> M:
        sizes = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ("coords", "inputs", "outputs")
        ]
        settings = [
            inspect.Parameter(
                n, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation
            )
            for n, field in config.model_fields.items()
            if n != "name"
        ]
        cls.__signature__ = inspect.Signature([*sizes, *settings])  # type: ignore[attr-defined]  # what inspect looks for
        CONFIGS.register(name)(config)
        MODELS.register(name)(cls)
        return cls

    return add


def build_model(config: ModelConfig, spec: FieldSpec) -> Transformer:
    """The model that `config` describes, sized for the data that `spec` describes."""
    settings = config.model_dump(exclude={"name"})
    if "grid" in settings and settings["grid"] is None:
        settings["grid"] = spec.grid
    sizes = {"coords": len(spec.coords), "inputs": len(spec.inputs), "outputs": len(spec.outputs)}
    return MODELS[config.name](**sizes, **settings)
