"""`linearno import`: import published weights as a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import console, user_errors
from linearno.cli.train import open_recipe
from linearno.core.config import override
from linearno.import_weights import UNSCALED, import_weights, unscaled_fields
from linearno.recipes import RECIPES


def import_(
    weights: Annotated[Path, typer.Argument(help="state dict of the published code (.pt, .pth)")],
    recipe: Annotated[
        str,
        typer.Option(
            help="recipe of the weights (see `linearno recipes`)",
            autocompletion=lambda: list(RECIPES),
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="run folder to write")],
    data: Annotated[Path | None, typer.Option(help="training data, to fit the scaler")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change a field of the recipe; repeatable"),
    ] = None,
) -> None:
    """Import weights saved by published code, such as that of LinearNO or Transolver, as a run folder.

    `predict`, `evaluate` and `export` accept it like any other run. The weights do not contain the scaler of
    the fields: --data fits it on the training data, as the published code does. Without --data the model
    expects and returns scaled fields if its recipe scales them. Code in the file is not executed.

    Examples:

      linearno import w.pt --recipe darcy/linearno --data data/darcy -o published
      linearno evaluate published
    """
    with user_errors():
        changes = [*(set_ or []), *([] if data is None else [f"data.root={data}"])]
        config = override(open_recipe(recipe), changes)
        bundle = import_weights(weights, config, out, with_data=data is not None)
        count = sum(weight.numel() for weight in bundle.model.parameters())
        console.print(f"{out}: {bundle.recipe}, {count:,} parameters", soft_wrap=True)
        if unknown := unscaled_fields(bundle.spec):
            console.print(
                f"note: {', '.join(unknown)} are in {UNSCALED}, since weights do not contain the scaler; "
                "for physical units import with --data FOLDER",
                soft_wrap=True,
            )
