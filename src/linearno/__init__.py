"""Neural operators by linear attention: gather N points into M slices, mix, scatter back."""

from linearno.bundle import load
from linearno.core.version import VERSION as __version__
from linearno.fitting import fit
from linearno.models import CrossLinearNO, LinearNO, Transolver, from_published, model
from linearno.streaming import stream

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
