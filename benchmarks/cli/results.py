"""`python -m benchmarks results`: the measured figures, listed; and the pages that show them, written."""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.pages import write_docs as write_pages
from benchmarks.records import Listing, Record, read_records, write_record
from benchmarks.run_records import record_of_run, record_runs
from linearno.cli.shared import console, user_errors
from linearno.core.errors import UserError

COMMIT_DIGITS = 7


def results(
    folder: Annotated[Path, typer.Option(help="folder of the records")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="print whole records, as a JSON list")] = False,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            help="first make a record of this finished run; may be repeated: runs that differ by their seed "
            "make one record, of their mean"
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="id of the record, if one run is recorded")] = None,
    write_docs: Annotated[
        bool,
        typer.Option("--write-docs", help="write the tables of README.md and docs/ from the records"),
    ] = False,
    root: Annotated[Path, typer.Option(help="the folder of README.md and docs/, for --write-docs")] = Path(
        "."
    ),
) -> None:
    """List the measured figures with their rivals, machines and commits; write the tables of the docs.

    A record is one JSON file named by its id, such as results/bench/step/darcy.json. Verbs write them with
    --out, --record makes them of finished runs. --write-docs fills the pages between the markers
    <!-- name --> and <!-- /name -->.

    Examples:

      python -m benchmarks results
      python -m benchmarks results --write-docs
      python -m benchmarks results --record runs/darcy-linearno
    """
    with user_errors():
        if id is not None and len(record or []) != 1:
            raise UserError("--id names the record of one run: give --record once")
        made_records = [record_of_run(record[0], id)] if record and id else record_runs(record or [])
        for made in made_records:
            typer.echo(f"record: {write_record(folder, made)}", err=as_json)
        listing = read_records(folder)
        if write_docs:
            _write(root, listing)
        elif as_json:
            whole = [found.model_dump(mode="json") for found in listing.records.values()]
            typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))
        else:
            _show(listing)


def _write(root: Path, listing: Listing) -> None:
    for page in (changed := write_pages(root, listing.records)):
        typer.echo(f"written: {page}")
    if not changed:
        typer.echo("every page is up to date")


def _show(listing: Listing) -> None:
    """One line per record, grouped by machine and cut to the terminal's width."""
    records = listing.records.values()
    name, room = max((len(one.id) for one in records), default=0), max(console.width, 80) - COMMIT_DIGITS - 1
    for machine in dict.fromkeys(one.machine for one in records):
        console.print(machine, style="bold", highlight=False, soft_wrap=True)
        for one in (one for one in records if one.machine == machine):
            line = f"  {one.id:<{name}} {one.value:>8.4g} {one.unit}{_against(one)}"
            cut = line if len(line) <= room else line[: room - 1] + "…"
            typer.echo(f"{cut:<{room}} {(one.commit or '')[:COMMIT_DIGITS]}")
    if listing.others:
        console.print(f"not records: {', '.join(str(path) for path in listing.others)}")


def _against(record: Record) -> str:
    """The nearest rival."""
    if not record.against:
        return ""
    name, value = min(record.against.items(), key=lambda one: abs(one[1] - record.value))
    return f" ({value:.4g} {name})"
