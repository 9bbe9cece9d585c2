"""Options and output shared by the verbs."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.records import Record, write_record
from linearno.cli.shared import console

OutOption = Annotated[
    Path | None, typer.Option(help="folder for the record, such as results; print only by default")
]


def keep_record(record: Record, out: Path | None) -> None:
    """Write the record if `--out` was given, and print its path."""
    if out is not None:
        console.print(f"record: {write_record(out, record)}")
