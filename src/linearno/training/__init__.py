"""From data and a model to a trained model: loss, optimiser, training step, checkpoints, prediction."""

from linearno.training.config import TrainingConfig
from linearno.training.fit import fit
from linearno.training.history import EpochRecord
from linearno.training.interrupt import Interrupted
from linearno.training.losses import LossConfig
from linearno.training.predict import predict
from linearno.training.setup import TrainingSetup
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
    "TrainingSetup",
    "fit",
    "predict",
]
