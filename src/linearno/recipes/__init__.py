"""Recipes that are not a pair BENCHMARK/MODEL: demo, gallery, and runs on a user's cases."""

from linearno.recipes import cases, demo, gallery
from linearno.run_config import RECIPES, recipe

__all__ = ["RECIPES", "cases", "demo", "gallery", "recipe"]
