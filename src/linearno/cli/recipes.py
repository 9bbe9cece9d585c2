"""`linearno recipes`: list the recipes or print one."""

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
        typer.Argument(help="print the configuration of this recipe", autocompletion=lambda: list(RECIPES)),
    ] = None,
    imports: ImportOption = None,
) -> None:
    """List the recipes, or print one as YAML; `linearno train --set` changes its fields.

    Every BENCHMARK/MODEL is a recipe, also if it is not listed: a model without published settings for a
    benchmark runs with its default settings.

    Examples:

      linearno recipes
      linearno recipes darcy/linearno
    """
    with user_errors():
        import_definitions(imports or [])
        if name is None:
            table = Table("name", "description", box=None, pad_edge=False)
            for recipe in RECIPES:
                table.add_row(recipe, (RECIPES[recipe].__doc__ or "").splitlines()[0])
            console.print(table)
            return
        typer.echo(yaml.safe_dump(RECIPES[name]().model_dump(mode="json"), sort_keys=False), nl=False)
