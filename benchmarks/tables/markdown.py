"""What the writers of tables share: their registry, Markdown, and where a record comes from."""

from collections.abc import Callable, Mapping, Sequence

from linearno.reproduce.records import Record

Records = Mapping[str, Record]
Writer = Callable[[Records], str]
TITLES = {
    "burgers1": "Burgers, 1 % observed",
    "burgers20": "Burgers, 20 % observed",
    "ns": "Navier–Stokes",
}  # of benchmarks whose capitalised name is not their title

TABLES: dict[str, Writer] = {}


def table(name: str, prefix: str, *, command: str | None, others: bool = False) -> Callable[[Writer], Writer]:
    """Register the writer of the table between `<!-- name -->` and `<!-- /name -->`.

    Args:
        name: of the marker.
        prefix: the writer gets the records below it, by the rest of their ids; a record whose whole id is
            the prefix has the name "".
        command: named instead of the table if there are none; None if the table needs no records.
        others: the writer gets all records, by their whole ids.
    """

    def register(write: Writer) -> Writer:
        def written(records: Records) -> str:
            found = below(records, prefix)
            if not found and command is not None:
                return f"Not yet measured: `{command}` does it."
            return write(records if others else found)

        TABLES[name] = written
        return write

    return register


def below(records: Records, prefix: str) -> dict[str, Record]:
    """The records with the id `prefix` or an id that starts with `prefix/`, by the rest of their ids."""
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
    """Ten digits, and `-dirty` if files differed from the commit."""
    commit, mark, state = (record.commit or "unknown").partition("-")
    return commit[:10] + mark + state
