"""Samples, field specifications, scalers and the registered benchmarks."""

import pkgutil
from importlib import import_module

from linearno.data.airfoil import AirfoilConfig
from linearno.data.airfrans import AirfransConfig
from linearno.data.benchmark import (
    DATASETS,
    METRICS,
    Benchmark,
    DataConfig,
    PerSample,
    SampleLayout,
    Splits,
    Variant,
    metric_title,
    relative_l2,
    relative_mae,
)
from linearno.data.bounding_box import box_of, outside_box
from linearno.data.burgers import BurgersConfig
from linearno.data.darcy import DarcyConfig
from linearno.data.elasticity import ElasticityConfig
from linearno.data.field_data import FieldData
from linearno.data.navier_stokes import NavierStokesConfig
from linearno.data.pipe import PipeConfig
from linearno.data.plasticity import PlasticityConfig
from linearno.data.sample import Batch, FieldSpec
from linearno.data.scaler import Scaler
from linearno.data.sensor_sampling import draw_observed, observed_count

for _module in pkgutil.iter_modules(__path__):  # importing a module registers its benchmark
    if not _module.ispkg:
        import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DATASETS",
    "METRICS",
    "AirfoilConfig",
    "AirfransConfig",
    "Batch",
    "Benchmark",
    "BurgersConfig",
    "DarcyConfig",
    "DataConfig",
    "ElasticityConfig",
    "FieldData",
    "FieldSpec",
    "NavierStokesConfig",
    "PerSample",
    "PipeConfig",
    "PlasticityConfig",
    "SampleLayout",
    "Scaler",
    "Splits",
    "Variant",
    "box_of",
    "draw_observed",
    "metric_title",
    "observed_count",
    "outside_box",
    "relative_l2",
    "relative_mae",
]
