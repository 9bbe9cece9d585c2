"""Data sets from a user's simulation files: discovery, reading in a separate process, YAML.

The reader process imports this package, so modules that need PyTorch are imported at first use.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from linearno.meshes.config import CasesConfig
    from linearno.meshes.example_cases import generate_cases

__all__ = ["CasesConfig", "generate_cases"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'linearno.meshes' has no attribute {name!r}")
    return getattr(import_module("linearno.meshes.example_cases"), name)  # importing registers the benchmark
