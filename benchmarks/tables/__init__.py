"""Markdown tables of README.md and docs/: one writer per table, registered under the name of its marker."""

from benchmarks.tables import lattice, readme, registry, scale, solvers, timing, training
from benchmarks.tables.markdown import TABLES

__all__ = ["TABLES", "lattice", "readme", "registry", "scale", "solvers", "timing", "training"]
