"""Airfoil with the published settings: 1,000 airfoils on 221×51 nodes, 500 epochs, no validation."""

from linearno.data import AirfoilConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import TrainingConfig

TRAINING = TrainingConfig(batch=4, weight_decay=1e-5, precision="bf16", checkpoint_seconds=30)


def _airfoil(model: str, *, clip: float) -> RunConfig:
    return RunConfig(
        recipe=f"airfoil/{model}",
        data=AirfoilConfig(),
        model=model_config(model, "airfoil"),
        training=TRAINING.model_copy(update={"clip": clip}),
    )


@RECIPES.register("airfoil/linearno")
def airfoil_linearno() -> RunConfig:
    """LinearNO: AdamW, one-cycle to 1e-3, batches of 4, gradients clipped at 1; nothing is scaled."""
    return _airfoil("linearno", clip=1.0)


@RECIPES.register("airfoil/transolver")
def airfoil_transolver() -> RunConfig:
    """Transolver: as LinearNO, gradients clipped at 0.1."""
    return _airfoil("transolver", clip=0.1)
