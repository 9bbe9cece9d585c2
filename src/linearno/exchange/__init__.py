"""Models that leave for other programs, and weights that come from them."""

from linearno.exchange.adopt import UNSCALED, import_weights, unscaled_fields
from linearno.exchange.export import TOLERANCE, Exported, export_run
from linearno.exchange.formats import FORMATS

__all__ = [
    "FORMATS",
    "TOLERANCE",
    "UNSCALED",
    "Exported",
    "export_run",
    "import_weights",
    "unscaled_fields",
]
