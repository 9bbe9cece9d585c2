"""All commands of the command line, and the options of `linearno` itself."""

from typing import Annotated

import typer

from linearno.cli import (
    animate,
    data,
    demo,
    doctor,
    evaluate,
    export,
    gallery,
    import_,
    init,
    meshes,
    models,
    predict,
    recipes,
    report,
    train,
)
from linearno.core.version import VERSION

app = typer.Typer(
    name="linearno",
    help="Neural operators by linear attention: solve, learn, ask, look.\n\n"
    "New here?  linearno demo, and then linearno gallery\n\n"
    "Your own simulations:  linearno init FOLDER  →  linearno train dataset.yaml  →  "
    "linearno predict RUN mesh.vtu\n\n"
    "The way of a run:  linearno data generate darcy  →  linearno train darcy/linearno  →  "
    "linearno report runs/darcy-linearno",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"linearno {VERSION}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="print the version and exit", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    pass


app.command()(demo.demo)
app.command()(gallery.gallery)
app.add_typer(data.app, name="data")
app.command()(init.init)
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(meshes.query)
app.command()(export.export)
app.command("import")(import_.import_)
app.command()(report.report)
app.command()(animate.animate)
app.command()(models.models)
app.command()(recipes.recipes)
app.command()(doctor.doctor)
