"""`linearno models`: the architectures and their settings."""

import re
from typing import Annotated

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from linearno.cli.shared import ImportOption, console, user_errors
from linearno.models import MODELS, import_definitions


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="show the settings of one", autocompletion=lambda: list(MODELS)),
    ] = None,
    imports: ImportOption = None,
) -> None:
    """List the models, or the settings of one, which `train --set model.FIELD=VALUE` changes.

    Examples:

      linearno models
      linearno models linearno
    """
    with user_errors():
        import_definitions(imports or [])
        if name is None:
            table = Table("name", "what it is", box=None, pad_edge=False)
            for each in MODELS:
                table.add_row(each, MODELS[each].summary)
            console.print(table)
            return
        found = MODELS[name]
        table = Table("setting", "default", "type", "meaning", box=None, pad_edge=False)
        meanings = found.documented()
        for field, info in found.config.model_fields.items():
            if field != "name":
                default = "required" if info.is_required() else str(info.default)
                table.add_row(field, *map(escape, (default, _type_name(info), meanings.get(field, ""))))
        console.print(found.summary)
        console.print(table)


def _type_name(info: FieldInfo) -> str:
    """The annotation as one would write it, with the bounds that pydantic took out of it."""
    kind = re.sub(r"Annotated\[(\w+), Gt\(gt=0\)\]", r"\1", str(info.annotation).replace("typing.", ""))
    kind = re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", kind.removeprefix("<class '").removesuffix("'>"))
    return kind + "".join(f", {bound}" for bound in info.metadata).replace("Gt(gt=0)", "> 0")
