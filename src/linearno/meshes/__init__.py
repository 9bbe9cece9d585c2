"""A user's own simulation files: find the cases, read them in a separate process, describe them in YAML."""

from linearno.meshes.config import CasesConfig
from linearno.meshes.example_cases import generate_cases

__all__ = ["CasesConfig", "generate_cases"]
