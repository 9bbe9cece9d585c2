"""From data and a model to a trained model: loss, schedule, step, fit, checkpoints, prediction."""

from linearno.training.config import TrainingConfig
from linearno.training.fit import fit
from linearno.training.history import EpochRecord
from linearno.training.interrupt import Interrupted
from linearno.training.losses import LossConfig
from linearno.training.predict import predict
from linearno.training.tasks import TASKS, Completion, Rollout, Task, Timed

__all__ = [
    "TASKS",
    "Completion",
    "EpochRecord",
    "Interrupted",
    "LossConfig",
    "Rollout",
    "Task",
    "Timed",
    "TrainingConfig",
    "fit",
    "predict",
]
