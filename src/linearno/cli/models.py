"""`linearno models`: list the models and their settings."""

import re
from typing import Annotated, get_args

import torch
import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table
from torch import nn

from linearno.cli.shared import ImportOption, console, user_errors
from linearno.core.errors import UserError
from linearno.data import DATASETS, FieldSpec
from linearno.models import MODELS, ModelEntry, build_model, import_definitions, self_fitting
from linearno.models.registry import Family
from linearno.nn import ModelConfig
from linearno.nn.protocol import capabilities
from linearno.run_config import recipe

# Benchmarks for which the table lists parameter counts, with the titles of their columns.
PARAMETER_COLUMNS = {"darcy": "Darcy", "elasticity": "Elasticity"}


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="show the settings of this model", autocompletion=lambda: list(MODELS)),
    ] = None,
    imports: ImportOption = None,
) -> None:
    """List the models, or the settings of one model.

    Capabilities (at default settings): `mesh`: any set of points; `grid`: regular grids only; `points`: the
    points of the training data only; `graph`: needs edges between points; `ragged`: meshes of different sizes
    in one batch; `query`: predicts at arbitrary points; `stream`: meshes larger than memory; `closed form`:
    fitted without gradient steps; `std`: predicts standard deviations. The last columns count the parameters
    of the recipes darcy/MODEL and elasticity/MODEL.

    Change a setting with `linearno train RECIPE --set model.FIELD=VALUE`.

    Examples:

      linearno models
      linearno models linearno
    """
    with user_errors():
        import_definitions(imports or [])
        console.print(_overview() if name is None else _settings(MODELS[name]))


def _overview() -> Table:
    """A row for each model, grouped by family."""
    table = Table(box=None, pad_edge=False)
    for head in ("model", "paper", "capabilities"):
        table.add_column(head, no_wrap=head == "model")
    for head in PARAMETER_COLUMNS.values():
        table.add_column(head, justify="right")
    entries = [MODELS[name] for name in MODELS]
    for family in get_args(Family):
        of_family = [entry for entry in entries if entry.family == family]
        if of_family:
            table.add_row(f"[bold]{family}[/bold]")
        for entry in of_family:
            counts = [_count(entry.name, benchmark) for benchmark in PARAMETER_COLUMNS]
            able = ", ".join(_capabilities(entry))
            table.add_row(f"  {escape(entry.name)}", escape(entry.paper[0]), able, *counts)
    return table


def _capabilities(entry: ModelEntry) -> tuple[str, ...]:
    """Capabilities of the model with default settings, on points or, if it needs one, on a grid."""
    points = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))
    for spec in (points, points.model_copy(update={"grid": (32, 32)})):
        try:
            return capabilities(_without_weights(entry.config.make({"name": entry.name}), spec))
        except UserError:
            continue
    return ()


def _without_weights(config: ModelConfig, spec: FieldSpec) -> nn.Module:
    """Build the model on the meta device, or in memory if the constructor of a user's model reads values."""
    try:
        with torch.device("meta"):
            return build_model(config, spec)
    except UserError:
        raise
    except Exception:
        if MODELS[config.name].cls.__module__.startswith("linearno."):
            raise
    try:
        return build_model(config, spec)
    except Exception as error:
        raise UserError(f"model {config.name!r} cannot be built with default settings: {error}") from error


def _count(name: str, benchmark: str) -> str:
    """Number of parameters in the recipe BENCHMARK/NAME; empty if the model does not fit the benchmark."""
    try:
        config = recipe(benchmark, name)
        layout = DATASETS[benchmark].layout
        if layout is None or config.model.name != name or set(config.task.provides):
            return ""
        if self_fitting(name):  # the size of its state follows from the data
            return ""
        config.require_task_fits_model()
        model = _without_weights(config.model, layout(config.data).spec)
    except UserError:
        return ""
    return _millions(model)


def _millions(model: nn.Module) -> str:
    return f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M"


def _settings(entry: ModelEntry) -> Table:
    """A row for each setting of a model, below its summary and paper."""
    authors, address = entry.paper
    title = f"{entry.summary}\n{entry.family}; {', '.join(_capabilities(entry))}; {address or authors}"
    table = Table("setting", "default", "type", "meaning", box=None, pad_edge=False)
    table.title, table.title_justify, table.title_style = escape(title), "left", ""
    meanings = entry.documented()
    for field, info in entry.config.model_fields.items():
        if field != "name":
            default = "required" if info.is_required() else str(info.default)
            table.add_row(field, *map(escape, (default, _type_name(info), meanings.get(field, ""))))
    return table


def _type_name(info: FieldInfo) -> str:
    """The annotation of a setting without module names, with its bounds."""
    kind = re.sub(r"Annotated\[(\w+), Gt\(gt=0\)\]", r"\1", str(info.annotation).replace("typing.", ""))
    kind = re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", kind.removeprefix("<class '").removesuffix("'>"))
    return kind + "".join(f", {bound}" for bound in info.metadata).replace("Gt(gt=0)", "> 0")
