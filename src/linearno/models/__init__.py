"""Architectures behind one signature and one registry. A model is one file: all of them are imported."""

import pkgutil
from importlib import import_module

from linearno.models.cross_linearno import CrossLinearNO
from linearno.models.linearno import LinearNO
from linearno.models.plugins import import_definitions
from linearno.models.published_weights import (
    accepted_hints,
    from_published,
    infer_config,
    read_weights,
)
from linearno.models.registry import (
    MODELS,
    ModelEntry,
    PublishedFormat,
    build_model,
    model,
    probabilistic,
    rebuild_model,
    self_fitting,
)
from linearno.models.transolver import Transolver

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "MODELS",
    "CrossLinearNO",
    "LinearNO",
    "ModelEntry",
    "PublishedFormat",
    "Transolver",
    "accepted_hints",
    "build_model",
    "from_published",
    "import_definitions",
    "infer_config",
    "model",
    "probabilistic",
    "read_weights",
    "rebuild_model",
    "self_fitting",
]
