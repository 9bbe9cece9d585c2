"""Pipe with the published settings: 1,000 pipes at 129×129, 500 epochs, last epoch, no validation."""

from linearno.data import PipeConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import TrainingConfig

TRAINING = TrainingConfig(weight_decay=1e-5, precision="bf16", checkpoint_seconds=30)


@RECIPES.register("pipe/linearno")
def pipe_linearno() -> RunConfig:
    """LinearNO: AdamW, one-cycle to 1e-3, batches of 4, gradients clipped at 1; tested on the last 200."""
    return RunConfig(
        recipe="pipe/linearno",
        data=PipeConfig(test_split="last200"),
        model=model_config("linearno", "pipe"),
        training=TRAINING.model_copy(update={"batch": 4, "clip": 1.0}),
    )


@RECIPES.register("pipe/transolver")
def pipe_transolver() -> RunConfig:
    """Transolver: MLPs of twice the width, batches of 8, gradients clipped at 0.1; tested on the next 200."""
    return RunConfig(
        recipe="pipe/transolver",
        data=PipeConfig(test_split="next200"),
        model=model_config("transolver", "pipe"),
        training=TRAINING.model_copy(update={"batch": 8, "clip": 0.1}),
    )
