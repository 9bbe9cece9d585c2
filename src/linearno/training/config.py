"""Training settings. The defaults are the published LinearNO settings on Darcy flow."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from linearno.core.config import Config
from linearno.core.device import Precision
from linearno.training.losses import LossConfig

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TrainingConfig(Config):
    """Optimiser, schedule, loss and protocol of a run.

    Args:
        epochs: passes over the training samples.
        batch: samples per model call, shared among the processes of a run.
        accumulate: batches per optimiser step.
        optimizer: "adamw" or "adam".
        lr: largest learning rate.
        betas: decays of the moments; `onecycle` cycles the first between 0.95 and 0.85.
        weight_decay: decoupled for "adamw", an L2 penalty for "adam".
        clip: largest norm of the gradient; None: no clipping.
        schedule: of the learning rate.
        schedule_every: whether the schedule advances by step or by epoch.
        start_factor: `onecycle` begins at lr / start_factor.
        warmup: part of the run in which `onecycle` rises.
        decay: factor by which `step` multiplies the rate.
        decay_epochs: epochs between these decays.
        precision: of the training steps.
        eval_precision: of validation, test and bundle.
        ema: decay of averaged weights, which then are the result; None: none.
        validation: training samples held out (the last of a seeded permutation) to choose the epoch whose
            weights are the result; 0 is the paper's protocol: the last epoch.
        patience: stop after so many epochs without a smaller validation error; 0: never.
        checkpoint_epochs: epochs between checkpoints.
        checkpoint_seconds: least time between checkpoints.
        capture: replay the step as a CUDA graph; false: launch every kernel from Python.
        recompute: compute the activations of a block again in the backward pass: less memory, a third more
            work.
        shards: processes that share the points of a sample; see `parallel`.
        eval_batch: samples per model call of an evaluation.
        points: points of each mesh in an epoch, drawn anew for each epoch; None: all. Every evaluation uses
            the whole mesh.
        keep_surface: draw the points of the surface first.
        loss: the training loss.
        members: models of an ensemble, trained one after another with the seeds seed, seed + 1, …
        validation_seed: of the permutation that `validation` takes from; None: the seed of the run.
    """

    epochs: PositiveInt = 500
    batch: PositiveInt = 4
    accumulate: PositiveInt = 1
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: Positive = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    clip: Positive | None = 1.0
    schedule: Literal["onecycle", "cosine", "step", "constant"] = "onecycle"
    schedule_every: Literal["step", "epoch"] = "step"
    start_factor: Positive = 25.0
    warmup: Annotated[float, Field(gt=0, lt=1)] = 0.3
    decay: Annotated[float, Field(gt=0, le=1)] = 0.5
    decay_epochs: PositiveInt = 100
    precision: Precision = "fp32"
    eval_precision: Precision = "fp32"
    ema: float | None = None
    validation: NonNegativeInt = 0
    patience: NonNegativeInt = 0
    checkpoint_epochs: PositiveInt = 1
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    capture: bool = True
    recompute: bool = False
    shards: PositiveInt = 1
    eval_batch: PositiveInt = 1
    points: PositiveInt | None = None
    keep_surface: bool = False
    loss: LossConfig = LossConfig()
    members: PositiveInt = 1
    validation_seed: NonNegativeInt | None = None

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
    def _drawn_points_form_no_grid(self) -> "TrainingConfig":
        if self.patience and not self.validation:
            raise ValueError(f"patience={self.patience} needs validation samples; set validation")
        if self.points is None and self.keep_surface:
            raise ValueError("keep_surface=true says which points to take: set points, or leave it out")
        if self.points is not None and self.loss.gradient_weight:
            raise ValueError(
                f"points={self.points} of a mesh have no differences; set loss.gradient_weight=0"
            )
        return self
