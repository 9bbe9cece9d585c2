"""Markdown tables of README.md and docs/: one writer per table, registered under the name of its marker."""

from benchmarks.tables import airfoils, lattice, readme, registry, scale, service, solvers, timing, training
from benchmarks.tables.markdown import TABLES

__all__ = [
    "TABLES",
    "airfoils",
    "lattice",
    "readme",
    "registry",
    "scale",
    "service",
    "solvers",
    "timing",
    "training",
]
