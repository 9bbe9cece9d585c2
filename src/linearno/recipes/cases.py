"""A user's own cases: a run with settings that suit how many there are and how large."""

from linearno.core.errors import UserError
from linearno.meshes import CasesConfig
from linearno.meshes.discover import find_cases, split_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader_process import Reader
from linearno.models import MODELS
from linearno.run_config import RunConfig
from linearno.training import LossConfig, TrainingConfig

PEEKED = 8  # cases that are looked at for their size
SIZES = {  # points of all training cases, at most → a model
    10**5: {"width": 32, "depth": 3, "heads": 2, "slices": 16},
    10**6: {"width": 64, "depth": 4, "heads": 4, "slices": 32},
    10**7: {"width": 128, "depth": 6, "heads": 8, "slices": 64},
}
LARGEST = {"width": 128, "depth": 8, "heads": 8, "slices": 64}
TOGETHER = 8192  # points in a batch of small meshes, about
MOST_POINTS = 32768  # of a mesh in a step; of a larger one as many are drawn, anew in each epoch
STEPS = 6000  # of training, about
EPOCHS = (20, 500)


def cases_run(data: CasesConfig) -> RunConfig:
    """LinearNO on these cases: the more points there are, the larger; some thousand steps, one cycle."""
    cases, points = sizes_of(data)
    model = next((size for most, size in SIZES.items() if cases * points <= most), LARGEST)
    batch = max(1, min(8, TOGETHER // points, cases // 8))
    low, high = EPOCHS
    return RunConfig(
        recipe="cases/linearno",
        data=data,
        model=MODELS["linearno"].config.make({"name": "linearno", **model}),
        training=TrainingConfig(
            epochs=max(low, min(high, round(STEPS * batch / cases))),
            batch=batch,
            points=MOST_POINTS if points > MOST_POINTS else None,
            lr=2e-3 if model["width"] <= 64 else 1e-3,
            weight_decay=1e-5,
            loss=LossConfig(scaled=True),
        ),
    )


def sizes_of(data: CasesConfig) -> tuple[int, int]:
    """How many cases there are to learn from, and the points (or cells) of the largest of some of them."""
    train, _ = split_cases(find_cases(data.root, data.files), data.train, data.test, data.seed)
    counts = []
    with Reader() as reader:
        for file in train[:: max(1, len(train) // PEEKED)]:
            try:
                counts.append(reader.call(commands.summarise, file).count(data.location))
            except UserError:
                if not data.skip_bad:
                    raise
    return len(train), max(1, *counts) if counts else 1
