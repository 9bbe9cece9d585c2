"""Tables of docs/measured.md about large meshes."""

import statistics

from benchmarks.tables.markdown import Records, markdown_table, origin, table
from linearno.core.byte_sizes import format_bytes
from linearno.reproduce.records import Record

LABELS = {
    "cpu": "prediction on a CPU",
    "predict": "prediction",
    "query": "query of 10,000 points",
    "train": "training step",
}


@table("scale", "scale", command="python -m benchmarks scale --out results")
def scale_table(records: Records) -> str:
    found = {key: record for key, record in records.items() if not key.startswith("growth")}
    head = ["", "points", "model", "time", "memory", "from"]
    ordered = sorted(found, key=lambda key: (key.split("/")[0], found[key].details["points"]))
    return markdown_table(head, [_row(key, found[key]) for key in ordered])


def _row(key: str, record: Record) -> list[str]:
    facts = record.details
    model = f"width {facts['model']['width']}, depth {facts['model']['depth']}, {facts['precision']}"
    memory_used = "" if facts.get("bytes") is None else format_bytes(facts["bytes"])
    return [
        LABELS[key.split("/")[0]],
        f"{facts['points']:,}",
        model,
        _time(record),
        memory_used,
        origin(record),
    ]


def _time(record: Record) -> str:
    facts = record.details
    if "encode" in facts:
        encode, query = (statistics.median(facts[name]["seconds"]) for name in ("encode", "query"))
        return f"{query:.3g} s, {100 * record.value:.2g} % of the {encode:.3g} s for encoding the mesh"
    seconds = f"{statistics.median(facts['seconds']):.3g} s"
    if "us_a_point" not in facts:
        return seconds
    each = facts["us_a_point"]
    return f"{seconds}: {each['here']:.3g} µs per point ({each['at_few']:.3g} at {each['few']:,} points)"


@table("growth", "scale/growth", command="python -m benchmarks scale --what growth --out results")
def growth_table(found: Records) -> str:
    return "\n\n".join(_growth(record) for record in found.values())


def _growth(record: Record) -> str:
    facts, rows = record.details, []
    for row in facts["rows"]:
        median = statistics.median(row["seconds"])
        memory_used = "" if row["bytes"] is None else format_bytes(row["bytes"])
        per_point = f"{1e6 * median / row['points']:.3g}"
        rows.append(
            [f"{row['points']:,}", f"{median:.3g}", per_point, memory_used, row["keep"], f"{row['chunk']:,}"]
        )
    head = ["points", "s", "µs per point", "memory", "features in", "chunk"]
    fits = f"time as N^{facts['exponents']['time']:.2f}"
    if memory := facts.get("memory"):
        fits += (
            f", memory as {format_bytes(memory['fixed'])} per chunk and {memory['a_point']:.0f} bytes "
            f"per point, the second part as N^{facts['exponents']['memory']:.2f}"
        )
    if (first := facts.get("fitted_from", 0)) > facts["rows"][0]["points"]:
        fits += f", from {first:,} points on; smaller meshes are one chunk"
    model, calls = facts["model"], len(facts["rows"][0]["seconds"])
    threads = f", {facts['threads']} threads" if facts.get("threads") else ""
    note = (
        f"Fitted: {fits}. Medians of {calls} calls; width {model['width']}, depth {model['depth']}, "
        f"{facts['precision']}, budget {facts['budget']}{threads}. {origin(record)}."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"
