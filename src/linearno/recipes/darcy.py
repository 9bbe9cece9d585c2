"""Darcy flow with the published settings: 1,000 samples at 85×85, 500 epochs, last epoch, no validation."""

from linearno.data import DarcyConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import LossConfig, TrainingConfig

LOSS = LossConfig(
    gradient_weight=0.1
)  # relative L2 + 0.1 · relative L2 of the gradient, summed over the batch
TRAINING = TrainingConfig(
    precision="bf16",  # the fastest one that loses nothing against tf32: docs/measured.md
    checkpoint_seconds=30,
    loss=LOSS,
)


@RECIPES.register("darcy/linearno")
def darcy_linearno() -> RunConfig:
    """LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, gradients clipped at 1."""
    return RunConfig(
        recipe="darcy/linearno",
        data=DarcyConfig(),
        model=model_config("linearno", "darcy"),
        training=TRAINING.model_copy(update={"weight_decay": 1e-6, "clip": 1.0}),
    )


@RECIPES.register("darcy/transolver")
def darcy_transolver() -> RunConfig:
    """Transolver: distances to 8×8 references as position, weight decay 1e-5, gradients clipped at 0.1."""
    return RunConfig(
        recipe="darcy/transolver",
        data=DarcyConfig(),
        model=model_config("transolver", "darcy"),
        training=TRAINING.model_copy(update={"weight_decay": 1e-5, "clip": 0.1}),
    )
