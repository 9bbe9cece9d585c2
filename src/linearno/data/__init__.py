"""Samples, what they hold, how they are scaled, and the benchmarks they come from."""

from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, FieldData, Splits
from linearno.data.burgers import BurgersConfig
from linearno.data.darcy import DarcyConfig
from linearno.data.observe import draw_observed, observed_count
from linearno.data.sample import FieldSpec, Sample
from linearno.data.scaler import Scaler

__all__ = [
    "DATASETS",
    "Benchmark",
    "BurgersConfig",
    "DarcyConfig",
    "DataConfig",
    "FieldData",
    "FieldSpec",
    "Sample",
    "Scaler",
    "Splits",
    "draw_observed",
    "observed_count",
]
