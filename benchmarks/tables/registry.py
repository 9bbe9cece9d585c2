"""The table of models and benchmarks, from the registries."""

import re

from benchmarks.tables.markdown import Records, markdown_table, table, title
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark
from linearno.models import MODELS, ModelEntry
from linearno.run_config import RunConfig, recipe

PUBLISHED, DEFAULT, UNFIT = "●", "○", ""
MARKS = (
    "● trains with settings from the literature, ○ with the default settings of the model; an empty cell:\n"
    "the model does not fit (it needs a grid, for example). `linearno train BENCHMARK/MODEL` runs any pair."
)
BOLD = "`linearno train BENCHMARK/MODEL` trains any of them; bold: with settings from the literature."


@table("models", "", command=None, others=True)
def models_table(records: Records) -> str:
    """A row for each built-in model, a column for each built-in benchmark."""
    rows = [[_linked(MODELS[model]), *(_mark(name, model) for name in _benchmarks())] for model in _models()]
    return f"{markdown_table(['model', *map(title, _benchmarks())], rows)}\n\n{MARKS}"


@table("benchmarks", "", command=None, others=True)
def benchmarks_table(records: Records) -> str:
    """A row for each built-in benchmark, with the models that fit."""
    rows = []
    for name in _benchmarks():
        marks = {model: _mark(name, model) for model in _models()}
        bold = [f"**{model}**" for model, mark in marks.items() if mark == PUBLISHED]
        plain = [model for model, mark in marks.items() if mark == DEFAULT]
        problem = DATASETS[name].summary.partition(": ")[2]
        rows.append([f"`{name}`", problem, ", ".join([*bold, *plain])])
    return f"{markdown_table(['benchmark', 'problem', 'models'], rows)}\n\n{BOLD}"


def _benchmarks() -> list[str]:
    return [name for name in DATASETS if DATASETS[name].config.__module__.startswith("linearno.data.")]


def _models() -> list[str]:
    return [name for name in MODELS if MODELS[name].cls.__module__.startswith("linearno.models.")]


def _linked(model: ModelEntry) -> str:
    paper = re.search(r"https://[^\s)]+", model.summary)
    return f"[`{model.name}`]({paper[0]})" if paper else f"`{model.name}`"


def _mark(name: str, model: str) -> str:
    benchmark = DATASETS[name]
    if model in {benchmark.variant(entry).model or entry for entry in benchmark.models}:
        return PUBLISHED
    try:
        config = recipe(name, model)
    except UserError:  # a setting without a default
        return UNFIT
    if config.model.name != model:  # the benchmark has an entry of that name with another model
        return UNFIT
    if "time" in config.task.provides and "time" in type(config.model).model_fields:
        config = config.model_copy(update={"model": config.model.model_copy(update={"time": True})})
    return DEFAULT if _fits(config, benchmark) else UNFIT


def _fits(config: RunConfig, benchmark: Benchmark) -> bool:
    """Whether task and data provide what the model needs, and the model takes what the task provides."""
    needs = set(MODELS[config.model.name].needs_of(config.model))
    spec = None if benchmark.layout is None else benchmark.layout(config.data).spec
    provided = {"positions", *config.task.provides}
    if spec is not None:
        provided |= set(spec.aux) | ({"grid"} if spec.grid else set())
    return needs <= provided and set(config.task.provides) <= needs
