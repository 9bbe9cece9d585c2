"""Architectures behind one signature and one registry."""

from linearno.models.cross_linearno import CrossLinearNO
from linearno.models.linearno import LinearNO
from linearno.models.published import from_published, read_weights, shapes_tell
from linearno.models.registry import CONFIGS, MODELS, build_model
from linearno.models.sizes import shape_of
from linearno.models.transolver import Transolver

__all__ = [
    "CONFIGS",
    "MODELS",
    "CrossLinearNO",
    "LinearNO",
    "Transolver",
    "build_model",
    "from_published",
    "read_weights",
    "shape_of",
    "shapes_tell",
]
