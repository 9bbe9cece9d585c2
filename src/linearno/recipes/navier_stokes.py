"""Navier–Stokes with the published settings: 1,000 trajectories at 64×64, 500 epochs, no validation.

Ten frames are known and ten are asked for. In training each step sees the true frames before it, and the ten
steps make one gradient; in the test every prediction is fed back.
"""

from linearno.data import NavierStokesConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import Rollout, TrainingConfig

TRAINING = TrainingConfig(batch=2, clip=None, precision="bf16", checkpoint_seconds=30, eval_batch=20)


def _ns(model: str, training: TrainingConfig) -> RunConfig:
    return RunConfig(
        recipe=f"ns/{model}",
        data=NavierStokesConfig(),
        model=model_config(model, "ns"),
        task=Rollout(forcing="teacher"),
        training=training,
    )


@RECIPES.register("ns/linearno")
def ns_linearno() -> RunConfig:
    """LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, no clipping."""
    return _ns("linearno", TRAINING)


@RECIPES.register("ns/transolver")
def ns_transolver() -> RunConfig:
    """Transolver: distances to 8×8 references as position, weight decay 1e-5.

    On generated data its loss collapsed in bf16; training.clip=1 prevents that.
    """
    return _ns("transolver", TRAINING.model_copy(update={"weight_decay": 1e-5}))
