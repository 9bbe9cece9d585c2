"""Options and output shared by the verbs."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import console
from linearno.reproduce.records import Record, write_record

OutOption = Annotated[
    Path | None, typer.Option(help="folder of records to write to, such as results; by default only print")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="change any field of the recipe; may be repeated"),
]
SeedOption = Annotated[int, typer.Option(min=0, help="seed of the random samples")]


def keep_record(record: Record, out: Path | None) -> None:
    """Write the record if `--out` was given, and print its path."""
    if out is not None:
        console.print(f"record: {write_record(out, record)}")
