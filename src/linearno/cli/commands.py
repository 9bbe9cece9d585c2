"""Table of the verbs, and the options of `linearno` itself."""

from typing import Annotated

import typer

from linearno.cli.lazy import SETTINGS, LazyGroup, Verb
from linearno.core.version import VERSION

VERBS = {
    "Start here": {
        "demo": Verb("demo:demo", "Solve a PDE, train two models, compare them (2 minutes)"),
        "gallery": Verb("gallery:gallery", "Train a small model on every benchmark"),
        "doctor": Verb("doctor:doctor", "Show what is installed and which device is used"),
    },
    "Data": {
        "data": Verb("data:app", "List, generate and verify the data of the benchmarks"),
        "init": Verb("init:init", "Write a dataset.yaml for a folder of simulations"),
    },
    "Train and analyse": {
        "models": Verb("models:models", "List the models or the settings of one"),
        "recipes": Verb("recipes:recipes", "List the recipes or print one as YAML"),
        "train": Verb("train:train", "Train a recipe or a dataset.yaml; resume or extend a run"),
        "evaluate": Verb("evaluate:evaluate", "Evaluate a run again, also on other test data"),
        "report": Verb("report:report", "Write an HTML report on one or several runs"),
        "animate": Verb("animate:animate", "Write a rollout as an animation"),
        "bodies": Verb("bodies:bodies", "Draw pressure and drag of the cars of a run"),
        "reproduce": Verb("reproduce:reproduce", "Reproduce a table or figure of the paper"),
    },
    "Use": {
        "predict": Verb("predict:predict", "Predict fields for new inputs or meshes"),
        "query": Verb("query:query", "Predict at arbitrary points, such as probes"),
        "studio": Verb("studio:studio", "Explore runs in the browser"),
        "serve": Verb("serve:serve", "Serve a run over HTTP"),
        "export": Verb("export:export", "Export a run as an ONNX or torch.export file"),
        "import": Verb("import_:import_", "Import weights of the published code as a run"),
    },
}


class Verbs(LazyGroup):
    """The group of all verbs."""

    package, sections = "linearno.cli", VERBS


app = typer.Typer(
    name="linearno",
    cls=Verbs,
    help="Neural operators: train, evaluate and deploy fast surrogates of PDE solvers.\n\n"
    "  linearno demo            # a first run, in two minutes\n"
    "  linearno VERB --help     # options and examples of a verb\n\n"
    "Your own simulations:\n\n"
    "  linearno init simulations/\n"
    "  linearno train dataset.yaml\n"
    "  linearno predict runs/cases-linearno new.vtu -o predicted.vtu\n\n"
    "A benchmark:\n\n"
    "  linearno data generate darcy\n"
    "  linearno train darcy/linearno\n"
    "  linearno report runs/darcy-linearno",
    no_args_is_help=True,
    **SETTINGS,
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"linearno {VERSION}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass
