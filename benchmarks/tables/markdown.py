"""Registry of table writers, Markdown formatting, and origin of records."""

from collections.abc import Callable, Mapping, Sequence

from linearno.reproduce.records import Record

Records = Mapping[str, Record]
Writer = Callable[[Records], str]
TITLES = {  # if the title is not the capitalised name
    "airfrans": "AirfRANS",
    "burgers1": "Burgers, 1 % observed",
    "burgers20": "Burgers, 20 % observed",
    "ns": "Navier–Stokes",
    "shapenet-car": "ShapeNet-Car",
}

TABLES: dict[str, Writer] = {}


def table(name: str, prefix: str, *, command: str | None, others: bool = False) -> Callable[[Writer], Writer]:
    """Register the writer of the table between `<!-- name -->` and `<!-- /name -->`.

    Args:
        name: name of the marker.
        prefix: the writer gets the records whose ids start with it, keyed by the remainder of the id ("" for
            the record whose id is the prefix).
        command: command that measures the records, shown if there are none; None if none are needed.
        others: pass all records to the writer, keyed by id.
    """

    def register(write: Writer) -> Writer:
        def write_or_hint(records: Records) -> str:
            found = below(records, prefix)
            if not found and command is not None:
                return f"Not yet measured: run `{command}`."
            return write(records if others else found)

        TABLES[name] = write_or_hint
        return write

    return register


def below(records: Records, prefix: str) -> dict[str, Record]:
    """Records with the id `prefix` or an id that starts with `prefix/`, keyed by the remainder of the id."""
    return {
        id.removeprefix(prefix).removeprefix("/"): record
        for id, record in records.items()
        if id == prefix or id.startswith(f"{prefix}/")
    }


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" ".join(["|", *(f"{cell} |" if cell else "|" for cell in cells)]) for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def title(benchmark: str) -> str:
    return TITLES.get(benchmark, benchmark.capitalize())


def machine_and_commit(record: Record) -> str:
    return f"{record.machine}, {short_commit(record)}"


def origin(record: Record) -> str:
    return f"{record.machine}, torch {record.versions.get('torch', '?')}, commit {short_commit(record)}"


def short_commit(record: Record) -> str:
    """First ten digits of the commit, with `-dirty` if files differed from it."""
    commit, mark, state = (record.commit or "unknown").partition("-")
    return commit[:10] + mark + state
