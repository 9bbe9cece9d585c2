"""How a model is trained. The defaults are the published LinearNO settings on Darcy flow."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from linearno.core.config import Config
from linearno.core.device import Precision
from linearno.training.losses import LossConfig

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TrainingConfig(Config):
    """Optimiser, schedule, loss and protocol of a run.

    `batch` is shared among the processes of a run; `accumulate` batches make one optimiser step. `ema` is the
    decay of averaged weights, which then are the result. `validation` training samples (the last
    of a seeded permutation) are held out and choose the epoch whose weights are the result; 0 is the paper's
    protocol: no validation, the last epoch. With `points` an epoch sees that many points of each mesh (all of
    a smaller one), drawn anew for the next; with `keep_surface` those of its surface come before any other,
    and count. Every evaluation sees the whole mesh.
    """

    epochs: PositiveInt = 500
    batch: PositiveInt = 4
    accumulate: PositiveInt = 1
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: Positive = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)  # `onecycle` cycles the first between 0.95 and 0.85
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    clip: Positive | None = 1.0  # largest gradient norm; null: no clipping
    schedule: Literal["onecycle", "cosine", "step", "constant"] = "onecycle"
    schedule_every: Literal["step", "epoch"] = "step"
    start_factor: Positive = 25.0  # `onecycle` begins at lr / start_factor
    warmup: Annotated[float, Field(gt=0, lt=1)] = 0.3  # part of the run in which `onecycle` rises
    decay: Annotated[float, Field(gt=0, le=1)] = 0.5  # `step` multiplies the rate by this
    decay_epochs: PositiveInt = 100  # every so many epochs
    precision: Precision = "fp32"
    eval_precision: Precision = "fp32"  # of validation, of the test, and of the bundle
    ema: float | None = None
    validation: NonNegativeInt = 0
    checkpoint_epochs: PositiveInt = 1
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # at least, between two
    capture: bool = True  # replay the step as a CUDA graph; false: launch every kernel from the host
    recompute: bool = False  # run each block again in the backward pass: less memory, a third more work
    shards: PositiveInt = 1  # processes that hold the points of a sample together; see `parallel`
    eval_batch: PositiveInt = 1
    points: PositiveInt | None = None  # of each mesh in an epoch; null: all of them
    keep_surface: bool = False
    loss: LossConfig = LossConfig()

    @field_validator("betas")
    @classmethod
    def _betas_are_decays(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"expected two decays in [0, 1), such as [0.9, 0.999]; got {list(betas)}")
        return betas

    @field_validator("ema")
    @classmethod
    def _ema_is_a_decay(cls, ema: float | None) -> float | None:
        if ema is not None and not 0 < ema < 1:
            raise ValueError(f"expected a decay between 0 and 1, such as 0.999, or null for none; got {ema}")
        return ema

    @model_validator(mode="after")
    def _some_points_are_no_grid(self) -> "TrainingConfig":
        if self.points is None and self.keep_surface:
            raise ValueError("keep_surface=true says which points to take: set points, or leave it out")
        if self.points is not None and self.loss.gradient_weight:
            raise ValueError(
                f"points={self.points} of a mesh have no differences; set loss.gradient_weight=0"
            )
        return self
