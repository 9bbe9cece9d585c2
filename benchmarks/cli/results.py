"""`python -m benchmarks results`: list the records, and write the tables of the documentation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.pages import write_docs as write_pages
from linearno.cli.shared import console, user_errors
from linearno.core.errors import UserError
from linearno.reproduce.records import Listing, Record, read_records, write_record
from linearno.reproduce.run_records import record_of_run, record_runs

COMMIT_DIGITS = 7


def results(
    folder: Annotated[Path, typer.Option(help="folder of the records")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="print complete records as a JSON list")] = False,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            help="write a record of this finished run first; may be repeated: runs that differ only by seed "
            "give one record of their mean"
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="id of the record, if one run is recorded")] = None,
    write_docs: Annotated[
        bool,
        typer.Option("--write-docs", help="write the tables of README.md and docs/ from the records"),
    ] = False,
    root: Annotated[Path, typer.Option(help="folder of README.md and docs/, for --write-docs")] = Path("."),
) -> None:
    """List the records with comparison values, machines and commits; write the tables of the docs.

    A record is one JSON file named by its id, such as results/bench/step/darcy.json. Verbs write records with
    --out, --record writes them from finished runs. --write-docs replaces the tables between the markers
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
            _write_pages(root, listing)
        elif as_json:
            values = [each.model_dump(mode="json") for each in listing.records.values()]
            typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        else:
            _print_records(listing)


def _write_pages(root: Path, listing: Listing) -> None:
    for page in (changed := write_pages(root, listing.records)):
        typer.echo(f"written: {page}")
    if not changed:
        typer.echo("every page is up to date")


def _print_records(listing: Listing) -> None:
    """One line per record, grouped by machine and cut to the terminal's width."""
    records = listing.records.values()
    id_width = max((len(record.id) for record in records), default=0)
    width = max(console.width, 80) - COMMIT_DIGITS - 1
    for machine in dict.fromkeys(record.machine for record in records):
        console.print(machine, style="bold", highlight=False, soft_wrap=True)
        for record in (record for record in records if record.machine == machine):
            line = f"  {record.id:<{id_width}} {record.value:>8.4g} {record.unit}{_nearest_peer(record)}"
            short = line if len(line) <= width else line[: width - 1] + "…"
            typer.echo(f"{short:<{width}} {(record.commit or '')[:COMMIT_DIGITS]}")
    if listing.other_files:
        console.print(f"not records: {', '.join(str(path) for path in listing.other_files)}")


def _nearest_peer(record: Record) -> str:
    """Name and value of the comparison value nearest to the record's."""
    if not record.against:
        return ""
    name, value = min(record.against.items(), key=lambda peer: abs(peer[1] - record.value))
    return f" ({value:.4g} {name})"
