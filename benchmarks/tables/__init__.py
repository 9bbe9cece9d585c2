"""Records as Markdown: a writer for each table of README.md and docs/, registered under its marker's name."""

from benchmarks.tables import readme, registry, scale, solvers, timing, training
from benchmarks.tables.markdown import TABLES

__all__ = ["TABLES", "readme", "registry", "scale", "solvers", "timing", "training"]
