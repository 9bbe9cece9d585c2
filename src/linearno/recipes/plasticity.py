"""Plasticity with the published settings: 900 forged blocks at 101×31 points and 20 times, 500 epochs, no
validation.

The model is told the time and answers with the frame of that time. As published, a batch makes 20 updates of
the weights, one for each frame, and the schedule moves once; coordinates are scrambled and the die is
reversed (`data.coords`, `data.die`). `…-at-once` makes one update with all frames of a batch.
"""

from typing import Literal

from linearno.data import PlasticityConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import Timed, TrainingConfig

TRAINING = TrainingConfig(batch=8, precision="bf16", checkpoint_seconds=30)


def _plasticity(
    name: str, model: str, *, updates: Literal["frame", "batch"], clip: float, decay: float
) -> RunConfig:
    return RunConfig(
        recipe=f"plasticity/{name}",
        data=PlasticityConfig(),
        model=model_config(model, "plasticity"),
        task=Timed(channels=4, updates=updates),
        training=TRAINING.model_copy(update={"weight_decay": decay, "clip": clip}),
    )


@RECIPES.register("plasticity/linearno")
def plasticity_linearno() -> RunConfig:
    """LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, gradients clipped at 1, an update a frame."""
    return _plasticity("linearno", "linearno", updates="frame", clip=1.0, decay=1e-6)


@RECIPES.register("plasticity/transolver")
def plasticity_transolver() -> RunConfig:
    """Transolver: weight decay 1e-5, gradients clipped at 0.1, an update a frame."""
    return _plasticity("transolver", "transolver", updates="frame", clip=0.1, decay=1e-5)


@RECIPES.register("plasticity/linearno-at-once")
def plasticity_linearno_at_once() -> RunConfig:
    """LinearNO with one update for all frames of a batch: faster, not the published loop."""
    return _plasticity("linearno-at-once", "linearno", updates="batch", clip=1.0, decay=1e-6)


@RECIPES.register("plasticity/transolver-at-once")
def plasticity_transolver_at_once() -> RunConfig:
    """Transolver with one update for all frames of a batch: faster, not the published loop."""
    return _plasticity("transolver-at-once", "transolver", updates="batch", clip=0.1, decay=1e-5)
