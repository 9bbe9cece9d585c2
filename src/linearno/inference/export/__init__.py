"""Models exported for other programs."""

from linearno.inference.export.export import TOLERANCE, Exported, export_run
from linearno.inference.export.formats import FORMATS

__all__ = ["FORMATS", "TOLERANCE", "Exported", "export_run"]
