"""The configuration of a run, and recipes: configurations with a name."""

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


def _chosen(field: str, kind: Callable[[str], type[Config]]) -> BeforeValidator:
    """Validate a part of the configuration with the class that its `name` selects."""

    def choose(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if not isinstance(value.get("name"), str):
            raise UserError(f"{field}.name: missing or not text; it says which {field} is meant")
        try:
            return kind(value["name"]).make(value)
        except UserError as error:
            own = ": " in str(error) and not str(error).startswith("unknown ")
            raise UserError(f"{field}.{error}" if own else str(error)) from None

    return BeforeValidator(choose)


class RunConfig(Config):
    """All that determines a run. The device is not part of it: a run may move.

    Args:
        recipe: name of the recipe that the configuration started from.
        seed: of initial weights, order of samples and everything drawn.
        data: benchmark and its settings.
        model: model and its settings.
        task: how samples become model calls.
        training: optimiser, schedule, loss and protocol.
        init_from: run folder whose weights the model starts from.
    """

    recipe: str
    seed: NonNegativeInt = 0
    data: Annotated[SerializeAsAny[DataConfig], _chosen("data", lambda name: DATASETS[name].config)]
    model: Annotated[SerializeAsAny[ModelConfig], _chosen("model", lambda name: MODELS[name].config)]
    task: Annotated[SerializeAsAny[Task], _chosen("task", TASKS.__getitem__)] = Task()
    training: TrainingConfig
    init_from: str | None = None

    def require_task_fits_model(self) -> None:
        """Refuse a model that lacks arguments which the task provides, or needs others.

        Not part of validation: `--set` may change either after a recipe is made.
        """
        needs = set(MODELS[self.model.name].needs_of(self.model))
        for part in ("time", "points"):
            provides, takes = part in self.task.provides, part in needs
            if provides == takes:
                continue
            if part == "time" and "time" in type(self.model).model_fields:
                does = "predicts frames by their time" if provides else "provides no times"
                raise UserError(f"task={self.task.name} {does}: set model.time={str(provides).lower()}")
            tasks = (name for name in TASKS if part in TASKS[name].provides)
            change = f"model.name={_example(part)}" if provides else f"task.name={next(tasks)}"
            raise UserError(f"task={self.task.name} does not fit model={self.model.name}: set {change}")

    @property
    def benchmark(self) -> Benchmark:
        return DATASETS[self.data.name]

    @property
    def metrics(self) -> dict[str, PerSample]:
        """Errors of each sample by name; the first one counts."""
        own = dict(self.benchmark.metrics)
        first = self.task.metric
        return own if first is None else {first: own.get(first) or METRICS[first]} | own

    @property
    def fingerprint(self) -> str:
        """Identifies the configuration."""
        return config_fingerprint(self.model_dump(mode="json"))

    @property
    def checkpoint_settings(self) -> dict[str, Any]:
        """Settings that a checkpoint stores to name a difference."""
        return checkpoint_settings(self.seed, self.training)

    def defaults_of(self, part: str, name: str) -> dict[str, Any] | None:
        """Default fields of another data set, model or task, for `--set PART.name=NAME`."""
        if part == "model":
            return _model_config(self.benchmark, name).model_dump(mode="json")
        if part == "task":
            return TASKS[name].make({"name": name}).model_dump(mode="json")
        return DATASETS[name].config.make({}).model_dump(mode="json") if part == "data" else None


def config_fingerprint(values: Mapping[str, Any]) -> str:
    """The fingerprint of a configuration given as plain values, as in config.yaml.

    That of a stored file stays the same when later versions add fields with defaults.
    """
    plain = {name: value for name, value in values.items() if (name, value) != ("init_from", None)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def changed(config: RunConfig, changes: list[str]) -> RunConfig:
    """`override`; a recipe BENCHMARK/MODEL whose model changes is renamed after the new model."""
    new = override(config, changes)
    benchmark, _, model = config.recipe.partition("/")
    same = new.model.name == config.model.name
    renamed = any(change.startswith("recipe=") for change in changes)
    if same or renamed or model != config.model.name:
        return new
    return new.model_copy(update={"recipe": f"{benchmark}/{new.model.name}"})


def _example(part: str) -> str:
    """A model that needs `part` with its default settings."""
    for name in MODELS:
        found = MODELS[name].needs
        if not callable(found) and part in found:
            return name
    return f"a model that needs {part}"


Recipe = Callable[[], RunConfig]


def recipe(benchmark: str, model: str) -> RunConfig:
    """The run of a model on a benchmark: its protocol and the published settings of the model.

    A registered model that the benchmark does not list runs with its defaults.
    """
    name, variant = _benchmark(benchmark)
    found = DATASETS[name]
    changes = found.variant(model)
    model_config = _model_config(found, model)
    at_once = CLOSED_FORM if self_fitting(model_config.name) else {}
    training = {**found.protocol, **variant.get("training", {}), **at_once, **changes.training}
    return RunConfig.make(
        {
            "recipe": f"{benchmark}/{model}",
            "data": found.config.make({**variant.get("data", {}), **changes.data}),
            "model": model_config,
            "task": make_task(_task_settings(found.task, variant.get("task", {}), changes.task)),
            "training": TrainingConfig.make(training),
        }
    )


def _task_settings(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """All settings together; a part with another name replaces those before it."""
    joint: dict[str, Any] = {}
    for part in parts:
        same = part.get("name", joint.get("name")) == joint.get("name")
        joint = {**joint, **part} if same else dict(part)
    return joint


def _benchmark(name: str) -> tuple[str, Mapping[str, Any]]:
    """The registered benchmark with that name or variant, and the changes that the variant makes."""
    for each in DATASETS:
        if name in DATASETS[each].variants:
            return each, DATASETS[each].variants[name]
    return name, {}


def _model_config(benchmark: Benchmark, name: str) -> ModelConfig:
    variant = benchmark.variant(name)
    model = variant.model or name
    return MODELS[model].config.make({"name": model, **variant.settings})


def _pair(benchmark: str, model: str) -> Recipe:
    def make() -> RunConfig:
        return recipe(benchmark, model)

    name, variant = _benchmark(benchmark)
    summary = DATASETS[name].variant(model).summary or f"{model} with its default settings."
    more = variant.get("summary")
    make.__doc__ = f"{summary.removesuffix('.')}; {more}." if more else summary
    return make


class Recipes(Registry[Recipe]):
    """Recipes by name: functions that were registered, and `benchmark/model` for every pair.

    Listed are the registered ones and the pairs of each benchmark's table of models.
    """

    def __getitem__(self, name: str) -> Recipe:
        if name in self._entries:
            return self._entries[name]
        benchmark, _, model = name.partition("/")
        if name in self or (benchmark in _benchmark_names() and model in MODELS):
            return _pair(benchmark, model)
        known = {*self, *(f"{benchmark}/{each}" for each in MODELS if benchmark in _benchmark_names())}
        raise UserError(f"unknown recipe {name!r}; {did_you_mean(name, known)}; {MODELS.hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *self._listed()}))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._listed()

    def _listed(self) -> set[str]:
        return {
            f"{benchmark}/{model}"
            for each in DATASETS
            for benchmark in (DATASETS[each].variants or [each])
            for model in DATASETS[each].models
        }


def _benchmark_names() -> set[str]:
    return set(DATASETS) | {variant for each in DATASETS for variant in DATASETS[each].variants}


RECIPES = Recipes("recipe")
