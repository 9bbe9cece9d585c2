"""`linearno models`: which architectures there are, and their settings."""

from typing import Annotated

import typer
from rich.table import Table

from linearno.cli.shared import console, user_errors
from linearno.models import CONFIGS, MODELS


def models(
    name: Annotated[
        str | None, typer.Argument(help="show the settings of one", autocompletion=lambda: list(MODELS))
    ] = None,
) -> None:
    """Name the models, or the settings of one; each can be changed with `train --set model.FIELD=VALUE`.

    Example:  linearno models linearno
    """
    with user_errors():
        if name is None:
            table = Table("name", "what it is", box=None, pad_edge=False)
            for each in MODELS:
                table.add_row(each, (MODELS[each].__doc__ or "").splitlines()[0])
            console.print(table)
            return
        table = Table("setting", "default", "type", box=None, pad_edge=False)
        for field, info in CONFIGS[name].model_fields.items():
            kind = str(info.annotation).replace("typing.", "").removeprefix("<class '").removesuffix("'>")
            table.add_row(field, str(info.default), kind.replace("linearno.nn.settings.", ""))
        console.print(table)
