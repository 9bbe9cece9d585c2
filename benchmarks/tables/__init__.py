"""Records as Markdown: a writer for each table of README.md and docs/, registered under its marker's name."""

from benchmarks.tables import readme, scale, solvers, timing, training
from benchmarks.tables.markdown import TABLES

__all__ = ["TABLES", "readme", "scale", "solvers", "timing", "training"]
