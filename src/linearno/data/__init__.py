"""Samples, what they hold, how they are scaled, and the benchmarks they come from."""

from linearno.data.airfoil import AirfoilConfig
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, FieldData, Layout, Splits
from linearno.data.box import box_of, outside
from linearno.data.burgers import BurgersConfig
from linearno.data.cases_config import CasesConfig
from linearno.data.darcy import DarcyConfig
from linearno.data.elasticity import ElasticityConfig
from linearno.data.example_cases import generate_cases
from linearno.data.navier_stokes import NavierStokesConfig
from linearno.data.observe import draw_observed, observed_count
from linearno.data.pipe import PipeConfig
from linearno.data.plasticity import PlasticityConfig
from linearno.data.sample import FieldSpec, Sample
from linearno.data.scaler import Scaler

__all__ = [
    "DATASETS",
    "AirfoilConfig",
    "Benchmark",
    "BurgersConfig",
    "CasesConfig",
    "DarcyConfig",
    "DataConfig",
    "ElasticityConfig",
    "FieldData",
    "FieldSpec",
    "Layout",
    "NavierStokesConfig",
    "PipeConfig",
    "PlasticityConfig",
    "Sample",
    "Scaler",
    "Splits",
    "box_of",
    "draw_observed",
    "generate_cases",
    "observed_count",
    "outside",
]
