"""`linearno import`: published weights as a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import console, user_errors
from linearno.cli.train import open_recipe
from linearno.core.config import override
from linearno.import_weights import UNSCALED, import_weights, unscaled_fields
from linearno.recipes import RECIPES


def import_(
    weights: Annotated[Path, typer.Argument(help="the state dict that the published code saved (.pt, .pth)")],
    recipe: Annotated[
        str,
        typer.Option(
            help="the recipe that the weights were trained by (see `linearno recipes`)",
            autocompletion=lambda: list(RECIPES),
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="run folder to write")],
    data: Annotated[
        Path | None, typer.Option(help="folder of the training data: scaling is fitted on them")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change any field of the recipe; may be repeated"),
    ] = None,
) -> None:
    """Make a run folder of weights that the published LinearNO or Transolver code saved.

    `predict`, `evaluate` and `export` then take it as they take a run trained here. Weights do not hold the
    scaling of the fields: with --data it is fitted on the training data, as the published code does. Without,
    the model takes and gives scaled fields where its recipe scales them. Nothing in the file is run.

    Example:  linearno import darcy.pt --recipe darcy/linearno --data data/darcy -o runs/published

    Then:  linearno evaluate runs/published
    """
    with user_errors():
        changes = [*(set_ or []), *([] if data is None else [f"data.root={data}"])]
        config = override(open_recipe(recipe), changes)
        bundle = import_weights(weights, config, out, with_data=data is not None)
        count = sum(weight.numel() for weight in bundle.model.parameters())
        console.print(f"{out}: {bundle.recipe}, {count:,} parameters", soft_wrap=True)
        if unknown := unscaled_fields(bundle.spec):
            console.print(
                f"remark: {', '.join(unknown)} in {UNSCALED}, since weights do not hold the scaling; "
                "for physical units import with --data FOLDER",
                soft_wrap=True,
            )
