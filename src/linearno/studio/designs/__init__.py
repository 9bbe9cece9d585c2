"""Designs of the benchmarks, and which of them a run offers."""

from linearno.studio.designs.airfoil import AirfoilDesign
from linearno.studio.designs.base import Design, Handle, LinePlot, Parameter, Quantity, Series
from linearno.studio.designs.cases import CaseDesign
from linearno.studio.designs.darcy import DarcyDesign
from linearno.studio.designs.naca import FiveDigitDesign, FourDigitDesign, NacaDesign
from linearno.studio.designs.samples import SampleDesign

__all__ = [
    "AirfoilDesign",
    "CaseDesign",
    "DarcyDesign",
    "Design",
    "FiveDigitDesign",
    "FourDigitDesign",
    "Handle",
    "LinePlot",
    "NacaDesign",
    "Parameter",
    "Quantity",
    "SampleDesign",
    "Series",
]
