"""Runs with a name. A pair of a benchmark and a model is a recipe by itself; these are the others."""

from linearno.recipes import cases, demo, gallery
from linearno.run_config import RECIPES, recipe

__all__ = ["RECIPES", "cases", "demo", "gallery", "recipe"]
