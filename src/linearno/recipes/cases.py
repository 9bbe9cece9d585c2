"""Run configuration for a user's cases, with model size and schedule chosen by their number and size."""

from typing import Any

from linearno.core.errors import UserError
from linearno.data import DATASETS, FieldData, Splits
from linearno.meshes import CasesConfig
from linearno.meshes.discover import find_cases, known_cases, split_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader_process import Reader
from linearno.models import MODELS, self_fitting
from linearno.run_config import RunConfig
from linearno.training import LossConfig, TrainingConfig

INSPECTED_CASES = 8  # cases that are read to estimate the size of the meshes
MODEL_BY_TOTAL_POINTS = {  # largest number of points in all training cases → settings of the model
    10**5: {"width": 32, "depth": 3, "heads": 2, "slices": 16},
    10**6: {"width": 64, "depth": 4, "heads": 4, "slices": 32},
    10**7: {"width": 128, "depth": 6, "heads": 8, "slices": 64},
}
LARGEST_MODEL = {"width": 128, "depth": 8, "heads": 8, "slices": 64}
MAX_BATCH = 8
TARGET_BATCH_POINTS = 8192  # points in a batch of small meshes
MAX_MESH_POINTS = 32768  # larger meshes are subsampled to this size, anew in each epoch
TARGET_STEPS = 6000
MIN_EPOCHS, MAX_EPOCHS = 20, 500


def cases_run(data: CasesConfig, model: str = "linearno", splits: Splits | None = None) -> RunConfig:
    """A model on a user's cases: a larger LinearNO for more points, about `TARGET_STEPS` training steps.

    Args:
        data: the cases.
        model: registered name; others than LinearNO have their default settings.
        splits: the cases as arrays, if they have been read.
    """
    cases, points = case_sizes(data) if splits is None else _sizes_of(splits.train)
    if model != "linearno":
        return _other_run(data, model, cases, points)
    sizes = MODEL_BY_TOTAL_POINTS.items()
    settings = next((settings for limit, settings in sizes if cases * points <= limit), LARGEST_MODEL)
    batch = max(1, min(MAX_BATCH, TARGET_BATCH_POINTS // points, cases // 8))
    return RunConfig(
        recipe="cases/linearno",
        data=data,
        model=MODELS["linearno"].config.make({"name": "linearno", **settings}),
        training=TrainingConfig(
            epochs=max(MIN_EPOCHS, min(MAX_EPOCHS, round(TARGET_STEPS * batch / cases))),
            batch=batch,
            points=MAX_MESH_POINTS if points > MAX_MESH_POINTS else None,
            lr=2e-3 if settings["width"] <= 64 else 1e-3,
            weight_decay=1e-5,
            loss=LossConfig(scaled=True),
        ),
    )


def _other_run(data: CasesConfig, name: str, cases: int, points: int) -> RunConfig:
    """A model with its default settings, and the schedule of LinearNO unless it is fitted in closed form."""
    settings = DATASETS["cases"].variant(name).settings
    training: dict[str, Any] = {"epochs": 1, "loss": {"scaled": True}}
    if not self_fitting(name):
        batch = max(1, min(MAX_BATCH, TARGET_BATCH_POINTS // points, cases // 8))
        epochs = max(MIN_EPOCHS, min(MAX_EPOCHS, round(TARGET_STEPS * batch / cases)))
        training |= {"epochs": epochs, "batch": batch, "lr": 1e-3, "weight_decay": 1e-5}
    return RunConfig(
        recipe=f"cases/{name}",
        data=data,
        model=MODELS[name].config.make({"name": name, **settings}),
        training=TrainingConfig.make(training),
    )


def _sizes_of(train: FieldData) -> tuple[int, int]:
    """Number of cases, and points of the largest."""
    points = train.coords.shape[-2] if train.offsets is None else int(train.offsets.diff().max())
    return len(train), points


def case_sizes(data: CasesConfig) -> tuple[int, int]:
    """Number of training cases, and points (or cells) of the largest among `INSPECTED_CASES` of them."""
    found = known_cases(find_cases(data.root, data.files, data.frames), data.cases)
    train, _ = split_cases(found, data.train, data.test, data.seed)
    counts = []
    with Reader() as reader:
        for file in train[:: max(1, len(train) // INSPECTED_CASES)]:
            try:
                counts.append(reader.call(commands.summarise, file).count(data.location))
            except UserError:
                if not data.skip_bad:
                    raise
    return len(train), max(1, *counts) if counts else 1
