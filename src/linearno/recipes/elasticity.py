"""Elasticity with the published settings: 1,000 samples of 972 points, 500 epochs, no validation."""

from linearno.data import ElasticityConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import TrainingConfig

TRAINING = TrainingConfig(
    batch=1,
    weight_decay=1e-5,
    schedule="cosine",
    schedule_every="epoch",
    precision="bf16",
    checkpoint_seconds=30,
)


def _elasticity(model: str, *, clip: float) -> RunConfig:
    return RunConfig(
        recipe=f"elasticity/{model}",
        data=ElasticityConfig(),
        model=model_config(model, "elasticity"),
        training=TRAINING.model_copy(update={"clip": clip}),
    )


@RECIPES.register("elasticity/linearno")
def elasticity_linearno() -> RunConfig:
    """LinearNO: AdamW, cosine from 1e-3 by epochs, weight decay 1e-5, gradients clipped at 1."""
    return _elasticity("linearno", clip=1.0)


@RECIPES.register("elasticity/transolver")
def elasticity_transolver() -> RunConfig:
    """Transolver: as LinearNO, gradients clipped at 0.1."""
    return _elasticity("transolver", clip=0.1)
