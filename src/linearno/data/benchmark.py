"""Benchmarks: data, training protocol and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.data.field_data import FieldData
from linearno.data.sample import Batch, FieldSpec
from linearno.metrics import norms


class DataConfig(Config):
    """Data to load; each benchmark adds fields with defaults.

    Args:
        name: registered name of the benchmark.
        root: folder of the files.
        train: number of training samples.
        test: number of test samples.
    """

    name: str
    root: Path
    train: PositiveInt
    test: PositiveInt

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split that `generate` writes."""
        return {"train": self.train, "test": self.test}


class SampleLayout(NamedTuple):
    """Fields and points of the samples of a data set.

    Args:
        spec: names and roles of the fields.
        coords: points (N, X) that all samples share; None if every sample has its own.
        packed: whether samples have different numbers of points.
    """

    spec: FieldSpec
    coords: Tensor | None = None
    packed: bool = False

    def fill(self, inputs: Tensor | None, targets: Tensor) -> FieldData:
        """A split with fields (S, N, C) at the shared points."""
        assert self.coords is not None
        return FieldData(self.spec, self.coords, inputs, targets)


class Splits(NamedTuple):
    """Result of `Benchmark.open`.

    Args:
        train: training samples; validation samples are split off from them.
        test: test samples.
        source: origin of the data, stored with every result; starts with "generated" for a set with a card,
            whose hashes are verified.
    """

    train: FieldData
    test: FieldData
    source: str


@runtime_checkable
class Generate(Protocol):
    """Function that generates the files of a benchmark, or resumes an interrupted call.

    Args:
        root: folder to fill; created if necessary.
        sizes: number of samples of each split.
        resolution: resolution of the solver, as the benchmark defines it.
        seed: seed of the random samples.
        workers: number of processes on a CPU.
        tick: called with the number of samples finished since its last call, including those of an
            interrupted call; not called if the set is complete.
        device: "cpu", "cuda", "cuda:1", … or "auto".
        scheme: name of the solver's scheme; its default if None.
    """

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


# (prediction, batch) → one value per sample (B,). Predictions are (B, N, C), or (1, T, C) of a packed batch.
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
    """Name of a metric in reports and figures."""
    return METRIC_TITLES.get(name, name.replace("_", " "))


RESERVED_METRICS = {  # keys of metrics.json with another meaning
    *("split", "samples", "metric", "relative_l2_by_frame", "relative_l2_by_field", "summaries"),
    *("mean_field", "parameters", "flops", "seconds", "data", "device", "protocol"),
    *("precision", "training_precision", "nearest_case", "coverage", "quantities"),
}


@dataclass(frozen=True)
class Variant:
    """Recipe that also changes training, data or task.

    Args:
        settings: settings of the model.
        model: registered name of the model; the name of the entry in `Benchmark.models` if None.
        training: changes to the benchmark's protocol.
        data: changes to the benchmark's data.
        task: changes to the benchmark's task; a task with another name replaces it.
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
    """A data set with the protocol of training and evaluation on it. One file defines it:

        DATASETS.register("name")(Benchmark(...))

    Args:
        summary: one line: inputs → outputs.
        config: class of the data settings. Every field has a default; `name` is the registered name.
        open: config → `Splits`, both in memory.
        verify: folder → problems of its files, one line each; empty if there are none.
        generate: writes the files with a solver; None if there is no solver.
        protocol: published training settings, as changes to the defaults of `TrainingConfig`.
        task: settings of the task, such as {"name": "rollout"}; direct prediction by default.
        models: published settings of each model, by recipe name: settings of the model, or a `Variant`. A
            registered model that is not listed runs with its defaults.
        variants: other names of this benchmark in recipes, each with changes to "task", "data" or "training".
        loss: (prediction, batch) → one value per sample (B,), for `training.loss.kind=benchmark`. Predictions
            and targets are (B, N, C) in physical units, or (1, T, C) of a packed batch.
        metrics: errors of each sample by name, in the form of `loss`; the first one chooses the best epoch.
        summaries: (predictions, test data) → one number for the test set, by name: a rank correlation.
            Predictions are (S, N, C), or (T, C) of packed data.
        constrain: (prediction, batch) → prediction with values that are known in advance, such as zero
            velocity on a wall, in the form of `loss`; applied to the predictions that are evaluated.
        test_set: (predictions, test data) → values for each test sample by name, (S,): lift and drag. They
            are written to the run folder for figures.
        cells: (config, indices of test samples) → quadrilaterals (Q, 4) or triangles (Q, 3) of each, for
            figures on its mesh.
        resolution: default of `generate`.
        small: number of samples of each split that `generate` writes on a CPU unless sizes or `--full` are
            given, for solvers that need hours for the complete set; the protocol's numbers by default.
        published: names of the published files, for `linearno data list`.
        outputs: generated fields that `linearno data pack` may round.
        channels: those of `outputs` with several quantities in axis 1.
        layout: config → `SampleLayout` of the published data, without files; needed to import weights.
        export: (root, out, tick) → number of samples of the generated set in `root`, written to `out` in the
            published layout.
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
    constrain: Callable[[Tensor, Batch], Tensor] | None = None
    test_set: Callable[[Tensor, FieldData], Mapping[str, ndarray]] | None = None
    cells: Callable[[Any, Sequence[int]], Sequence[ndarray]] | None = None
    resolution: int | None = None
    small: dict[str, int] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    layout: Callable[[Any], SampleLayout] | None = None
    export: Callable[[Path, Path, Callable[[int], None]], int] | None = None

    def __post_init__(self) -> None:
        if not self.metrics:
            raise UserError(
                'a benchmark needs a metric: give metrics={"relative_l2": relative_l2}, or leave it out'
            )
        if clash := RESERVED_METRICS & {*self.metrics, *self.summaries}:
            raise UserError(f"no metric may be called {clash.pop()!r}: metrics.json has that key already")

    def variant(self, name: str) -> Variant:
        """The entry of `models`; an empty one for a model that is not listed."""
        found = self.models.get(name, {})
        return found if isinstance(found, Variant) else Variant(settings=found)


DATASETS: Registry[Benchmark] = Registry(
    "dataset",
    plugins="linearno.benchmarks",
    hint="import one from your own file with --import FILE.py",
)
