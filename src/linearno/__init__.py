"""Neural operators by linear attention: gather N points into M slices, mix, scatter back."""

from linearno.bundle import load
from linearno.core.version import VERSION as __version__
from linearno.models import CrossLinearNO, LinearNO, Transolver, from_published
from linearno.streaming import stream

__all__ = ["CrossLinearNO", "LinearNO", "Transolver", "__version__", "from_published", "load", "stream"]
