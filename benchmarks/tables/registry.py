"""Tables of the registered models and benchmarks."""

import torch

from benchmarks.tables.markdown import Records, markdown_table, table, title
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark, FieldSpec
from linearno.models import MODELS, ModelEntry, build_model, self_fitting
from linearno.run_config import RunConfig, recipe

ORDER = UNFIT, DEFAULT, PUBLISHED = "", "○", "●"
MARKS = (
    "● trains with settings from the literature, ○ with the default settings of the model; empty: the model\n"
    "does not fit the benchmark. `linearno train BENCHMARK/MODEL` runs any pair."
)


@table("models", "", command=None, others=True)
def models_table(records: Records) -> str:
    """A row per built-in model with its paper, a column per built-in benchmark.

    A model `cross-NAME`, the form of NAME for field reconstruction, shares the row of NAME.
    """
    names = _models()
    rows = []
    for model in names:
        if model.startswith("cross-") and model.removeprefix("cross-") in names:
            continue
        forms = [form for form in (model, f"cross-{model}") if form in names]
        marks = [max((_mark(name, form) for form in forms), key=ORDER.index) for name in _benchmarks()]
        rows.append([", ".join(f"`{form}`" for form in forms), _paper(MODELS[model]), *marks])
    heads = [title(name) + (f" (`{name}`)" if name != title(name).lower() else "") for name in _benchmarks()]
    return f"{markdown_table(['model', 'paper', *heads], rows)}\n\n{MARKS}"


@table("benchmarks", "", command=None, others=True)
def benchmarks_table(records: Records) -> str:
    """A row per built-in benchmark: inputs, outputs and points."""
    rows = [[f"`{name}`", DATASETS[name].summary.partition(": ")[2]] for name in _benchmarks()]
    return markdown_table(["benchmark", "problem"], rows)


def _benchmarks() -> list[str]:
    return [name for name in DATASETS if DATASETS[name].config.__module__.startswith("linearno.data.")]


def _models() -> list[str]:
    return [name for name in MODELS if MODELS[name].cls.__module__.startswith("linearno.models.")]


def _paper(model: ModelEntry) -> str:
    """Authors and year, linked to the paper."""
    authors, address = model.paper
    return f"[{authors or 'paper'}]({address})" if address else authors


def _mark(name: str, model: str) -> str:
    benchmark = DATASETS[name]
    classical = MODELS[model].family == "classical"  # baselines whose settings are all ours
    if not classical and model in {benchmark.variant(entry).model or entry for entry in benchmark.models}:
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
    layout = None if benchmark.layout is None else benchmark.layout(config.data)
    spec = None if layout is None else layout.spec
    if layout is not None and layout.packed and self_fitting(config.model.name):
        return False
    provided = {"positions", *config.task.provides}
    if spec is not None:
        provided |= set(spec.aux) | ({"grid"} if spec.grid else set())
    if not (needs <= provided and set(config.task.provides) <= needs):
        return False
    return spec is None or len(spec.coords) < 3 or _builds(config, spec)


def _builds(config: RunConfig, spec: FieldSpec) -> bool:
    """Whether the model takes points with these coordinates; some take those of a plane only."""
    try:
        with torch.device("meta"):
            build_model(config.model, config.task.spec(spec))
    except UserError:
        return False
    return True
