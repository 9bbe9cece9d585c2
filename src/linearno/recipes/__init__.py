"""A run is a function with a name. One file for each benchmark; importing this room registers them all."""

from linearno.experiment import RECIPES
from linearno.recipes import (
    airfoil,
    burgers,
    cases,
    darcy,
    demo,
    elasticity,
    gallery,
    navier_stokes,
    pipe,
    plasticity,
)

__all__ = [
    "RECIPES",
    "airfoil",
    "burgers",
    "cases",
    "darcy",
    "demo",
    "elasticity",
    "gallery",
    "navier_stokes",
    "pipe",
    "plasticity",
]
