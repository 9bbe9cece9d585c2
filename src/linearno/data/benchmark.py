"""What a benchmark is: data, the protocol of training on them, and how predictions are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pydantic import PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.data.field_data import FieldData
from linearno.data.sample import Batch, FieldSpec
from linearno.metrics import norms


class DataConfig(Config):
    """Which data, from where, and how much of it."""

    name: str
    root: Path
    train: PositiveInt
    test: PositiveInt

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each split that the benchmark has."""
        return {"train": self.train, "test": self.test}


class SampleLayout(NamedTuple):
    """What the samples of a set look like, and the points (N, X) that they share, if they do."""

    spec: FieldSpec
    coords: Tensor | None = None

    def filled(self, inputs: Tensor | None, targets: Tensor) -> FieldData:
        """Samples (S, N, C) at the points that they share."""
        assert self.coords is not None
        return FieldData(self.spec, self.coords, inputs, targets)


class Splits(NamedTuple):
    train: FieldData
    test: FieldData
    source: str  # where the numbers come from, in words; stands beside every result


@runtime_checkable
class Generate(Protocol):
    """Make a benchmark's files with its solver; `tick(n)` is called when n more samples are finished."""

    def __call__(
        self,
        root: Path,
        *,
        sizes: dict[str, int],
        resolution: int,
        seed: int,
        workers: int,
        tick: Callable[[int], None],
        device: str = "cpu",
        scheme: str | None = None,
    ) -> None: ...


# One value per sample, in physical units, from a prediction (B, N, C) or packed (1, T, C) and its batch.
PerSample = Callable[[Tensor, Batch], Tensor]


def relative_l2(prediction: Tensor, batch: Batch) -> Tensor:
    """‖p − y‖₂ / ‖y‖₂ of each sample."""
    return norms.relative_l2(prediction, batch.targets, batch.segments)


def relative_mae(prediction: Tensor, batch: Batch) -> Tensor:
    """mean |p − y| / mean |y| of each sample."""
    return norms.relative_mae(prediction, batch.targets, batch.segments)


METRICS: dict[str, PerSample] = {"relative_l2": relative_l2, "relative_mae": relative_mae}
METRIC_TITLES = {"relative_l2": "relative L2", "relative_mae": "relative MAE"}


def metric_title(name: str) -> str:
    """A metric as a reader knows it."""
    return METRIC_TITLES.get(name, name.replace("_", " "))


RESERVED_METRICS = {  # other keys of metrics.json
    *("split", "samples", "metric", "relative_l2_by_frame", "relative_l2_by_field", "summaries"),
    *("mean_field", "parameters", "flops", "seconds", "data", "device", "protocol"),
    *("precision", "training_precision"),
}


@dataclass(frozen=True)
class Variant:
    """A recipe of a benchmark that needs more than the settings of a model.

    Args:
        settings: of the model.
        model: its registered name; the name of the entry in `Benchmark.models` if None.
        training: changes to the benchmark's protocol.
        data: changes to the benchmark's data.
        task: changes to the benchmark's task.
        summary: one line for `linearno recipes`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Data with the protocol that models are trained and judged by. One file defines it.

    Args:
        summary: one line: what is predicted from what.
        config: which data, from where, and how much of it.
        open: both splits, from what `config` makes.
        verify: problems of the files in a folder, a line each; none if all is well.
        generate: writes the files with a solver.
        protocol: the published training settings, as changes to the defaults of `TrainingConfig`.
        task: what the model is asked, as settings of a task: {"name": "rollout", …}.
        models: published settings of each model here, by recipe name; a registered model that is not listed
            runs with its defaults.
        variants: other names of this benchmark in recipes, each with changes to "task", "data" or "training".
        loss: one value per sample, minimised where `training.loss.kind` is "benchmark".
        metrics: errors of each sample by name; the first one counts.
        summaries: numbers of the whole test set, such as a rank correlation, from all predictions.
        resolution: default of `generate`.
        published: names of the published files.
        outputs: stored fields that may be rounded to be carried.
        channels: those of them whose first axis after the samples' holds several fields.
        layout: of the published files, which need not be present.
        seconds: time per sample of that resolution on one core, roughly.
        slower: time of a slower scheme, in multiples of the default one's.
        growth: exponent by which that time grows with the resolution, measured.
    """

    summary: str
    config: type[DataConfig]
    open: Callable[[Any], Splits]
    verify: Callable[[Path], list[str]]
    generate: Generate | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any] | Variant] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    loss: PerSample | None = None
    metrics: Mapping[str, PerSample] = field(default_factory=lambda: {"relative_l2": relative_l2})
    summaries: Mapping[str, Callable[[Tensor, FieldData], float]] = field(default_factory=dict)
    resolution: int | None = None
    published: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    layout: Callable[[Any], SampleLayout] | None = None
    seconds: float = 0.0
    slower: dict[str, float] | None = None
    growth: float = 2.0

    def __post_init__(self) -> None:
        if not self.metrics:
            raise UserError(
                'a benchmark needs a metric: give metrics={"relative_l2": relative_l2}, or leave it out'
            )

        if clash := RESERVED_METRICS & {*self.metrics, *self.summaries}:
            raise UserError(f"no metric may be called {clash.pop()!r}: metrics.json has other things there")

    def variant(self, name: str) -> Variant:
        """The recipe of that name; for a model that is not listed, one with its defaults."""
        found = self.models.get(name, {})
        return found if isinstance(found, Variant) else Variant(settings=found)


DATASETS: Registry[Benchmark] = Registry(
    "dataset",
    plugins="linearno.benchmarks",
    hint="a benchmark in a file of your own is given with --import FILE.py",
)
