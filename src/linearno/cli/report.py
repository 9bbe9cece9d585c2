"""`linearno report`: write an HTML page on one or several runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from linearno.cli.shared import console, user_errors
from linearno.report import write_report
from linearno.training.progress import unfinished


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several are compared")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file; report.html in the first run by default")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder for the figures of the page as image files")
    ] = None,
) -> None:
    """Write a self-contained HTML page: training curves, errors, best and worst cases, slices, settings.

    Examples:

      linearno report runs/darcy-linearno
      linearno report runs/darcy-linearno runs/darcy-transolver -o compare.html
    """
    with user_errors():
        page = out or runs[0] / "report.html"
        written = write_report(runs, page, figures)
        console.print(f"report: {page}")
        for run in runs:
            if (message := unfinished(run)) is not None:
                console.print(escape(message), soft_wrap=True)
        if figures is not None:
            console.print(f"figures: {len(written)} in {figures}")
