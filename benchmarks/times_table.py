"""Print a record of `attention` or `step` as a table."""

from rich.table import Table

from linearno.reproduce.records import Record


def times_table(record: Record) -> Table:
    """A row per candidate of a `bench/attention` or `bench/step` record."""
    table = Table("candidate", title=record.id, title_justify="left", box=None, pad_edge=False)
    for column in ("median ms", "quartiles", "peak MiB", "relative to linearno"):
        table.add_column(column, justify="right")
    details = record.details
    for name, timing in details["times_ms"].items():
        low, high = timing["quartiles"]
        peak = details["peak_mib"].get(name)
        table.add_row(
            name,
            f"{timing['median']:.4g}",
            f"{low:.4g} to {high:.4g}",
            "" if peak is None else f"{peak:.0f}",
            "" if name == details["ours"] else f"{timing['median'] / record.value:.2f}×",
        )
    for name, reason in details["absent"].items():
        table.add_row(name, reason, "", "", "")
    return table
