"""Neural operators in PyTorch: train, evaluate and deploy surrogates of PDE solvers on meshes and grids."""

from importlib import import_module

from linearno.core.version import VERSION as __version__

TYPE_CHECKING = False  # true for type checkers; importing `typing` would be the slowest part of this import
if TYPE_CHECKING:
    from linearno import data as data
    from linearno import inference as inference
    from linearno import meshes as meshes
    from linearno import metrics as metrics
    from linearno import models as models
    from linearno import nn as nn
    from linearno import ops as ops
    from linearno import solvers as solvers
    from linearno import training as training
    from linearno.fitting import fit
    from linearno.inference.bundle import load
    from linearno.inference.streaming import stream
    from linearno.models import CrossLinearNO, LinearNO, Transolver, from_published, model

__all__ = [
    "CrossLinearNO",
    "LinearNO",
    "Transolver",
    "__version__",
    "fit",
    "from_published",
    "load",
    "model",
    "stream",
]

# Imported at first use: PyTorch takes seconds to import, and `linearno --version` does not need it.
_MODULES = {
    "CrossLinearNO": "linearno.models",
    "LinearNO": "linearno.models",
    "Transolver": "linearno.models",
    "fit": "linearno.fitting",
    "from_published": "linearno.models",
    "load": "linearno.inference.bundle",
    "model": "linearno.models",
    "stream": "linearno.inference.streaming",
}
_SUBMODULES = ("data", "inference", "meshes", "metrics", "models", "nn", "ops", "solvers", "training")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"linearno.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'linearno' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
