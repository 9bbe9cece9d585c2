"""Configuration of a run, and recipes: named configurations."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, NonNegativeInt, SerializeAsAny

from linearno.core.config import Config, override
from linearno.core.errors import UserError, did_you_mean
from linearno.core.registry import Registry
from linearno.data import DATASETS, METRICS, Benchmark, DataConfig, PerSample
from linearno.models import MODELS, self_fitting
from linearno.nn import ModelConfig
from linearno.training import TASKS, Task, TrainingConfig
from linearno.training.checkpoint import checkpoint_settings
from linearno.training.tasks import make_task

CLOSED_FORM = {"epochs": 1, "precision": "fp32"}  # training settings of a model without gradient steps


def _selected_by_name(field: str, class_of: Callable[[str], type[Config]]) -> BeforeValidator:
    """Validate a part of the configuration with the class that its `name` selects."""

    def validate(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if not isinstance(value.get("name"), str):
            raise UserError(f"{field}.name: missing or not text; expected the name of a registered {field}")
        try:
            return class_of(value["name"]).make(value)
        except UserError as error:
            names_a_field = ": " in str(error) and not str(error).startswith("unknown ")
            raise UserError(f"{field}.{error}" if names_a_field else str(error)) from None

    return BeforeValidator(validate)


class RunConfig(Config):
    """Everything that determines a run, except the device: a run may resume on another one.

    Args:
        recipe: name of the recipe that the configuration is based on.
        seed: random seed of initial weights, order of samples and random draws.
        data: benchmark and its settings.
        model: model and its settings.
        task: how samples become model calls.
        training: optimiser, schedule, loss and protocol.
        init_from: run folder whose weights the model starts from.
    """

    recipe: str
    seed: NonNegativeInt = 0
    data: Annotated[SerializeAsAny[DataConfig], _selected_by_name("data", lambda name: DATASETS[name].config)]
    model: Annotated[
        SerializeAsAny[ModelConfig], _selected_by_name("model", lambda name: MODELS[name].config)
    ]
    task: Annotated[SerializeAsAny[Task], _selected_by_name("task", TASKS.__getitem__)] = Task()
    training: TrainingConfig
    init_from: str | None = None

    @property
    def members(self) -> list["RunConfig"]:
        """The configurations of the members of an ensemble, which hold out the same validation samples."""
        training = self.training
        split_seed = self.seed if training.validation_seed is None else training.validation_seed
        one = training.model_copy(update={"members": 1, "validation_seed": split_seed})
        return [
            self.model_copy(update={"seed": self.seed + number, "training": one})
            for number in range(training.members)
        ]

    def require_ensemble(self) -> None:
        """Raise if several members are asked for of a model or task that has no ensemble."""
        if self.training.members == 1:
            return
        what = f"training.members={self.training.members}"
        if self_fitting(self.model.name):
            raise UserError(f"{what}: model {self.model.name!r} is fitted in closed form; leave it out")
        if self.task.name != "direct":
            raise UserError(f"{what}: an ensemble is for the direct task, not {self.task.name}; leave it out")

    def require_task_fits_model(self) -> None:
        """Raise if the model does not accept what the task provides, or needs what it does not provide.

        Not part of validation, since `--set` may change model and task one after the other.
        """
        needs = set(MODELS[self.model.name].needs_of(self.model))
        for part in ("time", "points"):
            provided, needed = part in self.task.provides, part in needs
            if provided == needed:
                continue
            if part == "time" and "time" in type(self.model).model_fields:
                reason = "is time-conditioned" if provided else "provides no time input"
                raise UserError(f"task={self.task.name} {reason}: set model.time={str(provided).lower()}")
            tasks = (name for name in TASKS if part in TASKS[name].provides)
            change = f"model.name={_model_that_needs(part)}" if provided else f"task.name={next(tasks)}"
            raise UserError(f"task={self.task.name} does not fit model={self.model.name}: set {change}")

    @property
    def benchmark(self) -> Benchmark:
        return DATASETS[self.data.name]

    @property
    def metrics(self) -> dict[str, PerSample]:
        """Metrics per sample by name. The first is the main metric of the run."""
        metrics = dict(self.benchmark.metrics)
        main = self.task.metric
        return metrics if main is None else {main: metrics.get(main) or METRICS[main]} | metrics

    @property
    def fingerprint(self) -> str:
        """Hash of the configuration."""
        return config_fingerprint(self.model_dump(mode="json"))

    @property
    def checkpoint_settings(self) -> dict[str, Any]:
        """Settings that a checkpoint stores, to report which one differs."""
        return checkpoint_settings(self.seed, self.training)

    def defaults_of(self, part: str, name: str) -> dict[str, Any] | None:
        """Default fields of another data set, model or task, for `--set PART.name=NAME`."""
        if part == "model":
            return _model_config(self.benchmark, name).model_dump(mode="json")
        if part == "task":
            return TASKS[name].make({"name": name}).model_dump(mode="json")
        return DATASETS[name].config.make({}).model_dump(mode="json") if part == "data" else None


def config_fingerprint(values: Mapping[str, Any]) -> str:
    """Hash of a configuration given as plain values, as in config.yaml.

    The hash of a stored file does not change when later versions add fields with defaults.
    """
    plain = {name: value for name, value in values.items() if (name, value) != ("init_from", None)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def apply_changes(config: RunConfig, changes: list[str]) -> RunConfig:
    """Apply `FIELD=VALUE` changes. A recipe BENCHMARK/MODEL whose model changes is renamed."""
    new = override(config, changes)
    benchmark, _, model = config.recipe.partition("/")
    same_model = new.model.name == config.model.name
    renamed = any(change.startswith("recipe=") for change in changes)
    if same_model or renamed or model != config.model.name:
        return new
    return new.model_copy(update={"recipe": f"{benchmark}/{new.model.name}"})


def _model_that_needs(part: str) -> str:
    """Name of a model that needs `part` with its default settings."""
    for name in MODELS:
        needs = MODELS[name].needs
        if not callable(needs) and part in needs:
            return name
    return f"a model that needs {part}"


Recipe = Callable[[], RunConfig]


def recipe(benchmark: str, model: str) -> RunConfig:
    """The configuration of a model on a benchmark: protocol and published settings of the model.

    A registered model that the benchmark does not list runs with its default settings.

    Args:
        benchmark: name of a benchmark, or of one of its variants such as `burgers20`.
        model: name of a registered model, or of a variant in the benchmark's table of models.
    """
    name, variant = _find_benchmark(benchmark)
    entry = DATASETS[name]
    changes = entry.variant(model)
    model_config = _model_config(entry, model)
    closed_form = CLOSED_FORM if self_fitting(model_config.name) else {}
    training = {**entry.protocol, **variant.get("training", {}), **closed_form, **changes.training}
    return RunConfig.make(
        {
            "recipe": f"{benchmark}/{model}",
            "data": entry.config.make({**variant.get("data", {}), **changes.data}),
            "model": model_config,
            "task": make_task(_merge_task_settings(entry.task, variant.get("task", {}), changes.task)),
            "training": TrainingConfig.make(training),
        }
    )


def _merge_task_settings(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings; a part with another task name replaces the parts before it."""
    merged: dict[str, Any] = {}
    for part in parts:
        same_task = part.get("name", merged.get("name")) == merged.get("name")
        merged = {**merged, **part} if same_task else dict(part)
    return merged


def _find_benchmark(name: str) -> tuple[str, Mapping[str, Any]]:
    """The registered benchmark with that name or variant, and the settings of the variant."""
    for benchmark in DATASETS:
        if name in DATASETS[benchmark].variants:
            return benchmark, DATASETS[benchmark].variants[name]
    return name, {}


def _model_config(benchmark: Benchmark, name: str) -> ModelConfig:
    """The model in the benchmark's table of models, or a registered model with default settings."""
    variant = benchmark.variant(name)
    model = variant.model or name
    return MODELS[model].config.make({"name": model, **variant.settings})


def _benchmark_recipe(benchmark: str, model: str) -> Recipe:
    """`recipe(benchmark, model)` as a function with a summary."""

    def make() -> RunConfig:
        return recipe(benchmark, model)

    name, variant = _find_benchmark(benchmark)
    summary = DATASETS[name].variant(model).summary or f"{model} with its default settings."
    variant_summary = variant.get("summary")
    make.__doc__ = f"{summary.removesuffix('.')}; {variant_summary}." if variant_summary else summary
    return make


class Recipes(Registry[Recipe]):
    """Recipes by name: registered functions, and `benchmark/model` for every pair.

    Iteration lists registered functions and the pairs in each benchmark's table of models.
    """

    def __getitem__(self, name: str) -> Recipe:
        if name in self._entries:
            return self._entries[name]
        benchmark, _, model = name.partition("/")
        if name in self or (benchmark in benchmark_names() and model in MODELS):
            return _benchmark_recipe(benchmark, model)
        known = {*self, *(f"{benchmark}/{name}" for name in MODELS if benchmark in benchmark_names())}
        raise UserError(f"unknown recipe {name!r}; {did_you_mean(name, known)}; {MODELS.hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *self._listed()}))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._listed()

    def _listed(self) -> set[str]:
        return {
            f"{benchmark}/{model}"
            for name in DATASETS
            for benchmark in (DATASETS[name].variants or [name])
            for model in DATASETS[name].models
        }


def benchmark_names() -> set[str]:
    """Names of all benchmarks and their variants."""
    return set(DATASETS) | {variant for name in DATASETS for variant in DATASETS[name].variants}


RECIPES = Recipes("recipe")
