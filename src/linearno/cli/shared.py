"""Shared by all verbs: console, options, one-line errors, progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text

from linearno.core.errors import UserError

console = Console()

DeviceOption = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:1, …")]
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE.py",
        help="Python file or module that registers your own models or benchmarks; repeatable",
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="run folder, written by `linearno train`")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a `UserError` as one line and exit with code 2; other exceptions keep their traceback."""
    try:
        yield
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


class Advance(Protocol):
    """Advance a progress bar by `n` and optionally change its description."""

    def __call__(self, n: int, description: str | None = None) -> None: ...


class _RateColumn(ProgressColumn):
    """Completed items per second."""

    def render(self, task: ProgressTask) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Advance]:
    """A progress bar with rate and remaining time; shown on a terminal only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)

        def advance(n: int, description: str | None = None) -> None:
            progress.update(task, advance=n, description=description)

        yield advance
