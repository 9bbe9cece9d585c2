"""Burgers' equation, completed from observations: 4,096 trajectories, 500 epochs, last epoch, no validation.

`burgers20/linearno` observes 20 % of the points, `burgers1/linearno` 1 %, `burgers05` half a percent. The
sizes are those of the published code (4 blocks, 48 slices); `…/linearno-paper` has the paper's (8 blocks, 256
slices).
"""

from collections.abc import Callable

from linearno.data import BurgersConfig
from linearno.experiment import RECIPES, RunConfig
from linearno.recipes.published import model_config
from linearno.training import Completion, LossConfig, TrainingConfig

RATIOS = {"burgers20": 0.2, "burgers10": 0.1, "burgers5": 0.05, "burgers1": 0.01, "burgers05": 0.005}
SIZES = {"linearno": "burgers", "linearno-paper": "burgers-paper"}
TRAINING = TrainingConfig(
    optimizer="adam",
    weight_decay=0.0,
    clip=1000.0,
    start_factor=1e4,
    precision="bf16",
    checkpoint_seconds=30,
    loss=LossConfig(kind="mse", reduction="mean"),
)


def _recipe(benchmark: str, model: str) -> Callable[[], RunConfig]:
    def recipe() -> RunConfig:
        return RunConfig(
            recipe=f"{benchmark}/{model}",
            data=BurgersConfig(),
            model=model_config("cross-linearno", SIZES[model]),
            task=Completion(ratio=RATIOS[benchmark]),
            training=TRAINING,
        )

    sizes = "the paper's sizes" if model.endswith("paper") else "the published code's sizes"
    observed = f"{100 * RATIOS[benchmark]:g} % of the points"
    recipe.__doc__ = f"Cross-LinearNO from {observed}, {sizes}: Adam, one-cycle to 1e-3."
    return recipe


for _benchmark in RATIOS:
    for _model in SIZES:
        RECIPES.register(f"{_benchmark}/{_model}")(_recipe(_benchmark, _model))
