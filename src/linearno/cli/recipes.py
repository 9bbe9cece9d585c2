"""`linearno recipes`: which runs have a name, and what is in them."""

from typing import Annotated

import typer
import yaml
from rich.table import Table

from linearno.cli.shared import ImportOption, console, user_errors
from linearno.models import import_definitions
from linearno.recipes import RECIPES


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="show the whole configuration of one", autocompletion=lambda: list(RECIPES)),
    ] = None,
    imports: ImportOption = None,
) -> None:
    """Name the recipes, or print one as YAML: every field there can be changed with `train --set`.

    Any BENCHMARK/MODEL is a recipe, whether it is listed or not: a model that a benchmark does not list runs
    with its default settings.

    Example:  linearno recipes darcy/linearno
    """
    with user_errors():
        import_definitions(imports or [])
        if name is None:
            table = Table("name", "what it is", box=None, pad_edge=False)
            for each in RECIPES:
                table.add_row(each, (RECIPES[each].__doc__ or "").splitlines()[0])
            console.print(table)
            return
        typer.echo(yaml.safe_dump(RECIPES[name]().model_dump(mode="json"), sort_keys=False), nl=False)
