"""Lines of docs/how-to/serve.md and docs/how-to/studio.md: load, attacks, latency."""

from benchmarks.tables.markdown import Records, machine_and_commit, table


@table("service", "serve", command="python -m benchmarks serve-load demo/linearno --out results")
def service_lines(found: Records) -> str:
    lines = []
    if (record := found.get("load")) is not None:
        facts, origin = record.details, machine_and_commit(record)
        lines.append(
            f"{facts['requests']:,} requests, {facts['concurrent']} at a time, each compared with a "
            f"direct prediction at {facts['points']:,} points: {facts['lost']} lost, "
            f"{facts['wrong']} wrong, {record.value:.0f} requests/s, median {facts['median_ms']:.0f} ms ({origin})."
        )
    if (record := found.get("malicious")) is not None:
        facts, origin = record.details, machine_and_commit(record)
        lines.append(
            f"{facts['uploads']} malformed or malicious uploads of {facts['kinds']} kinds: "
            f"{record.value:.0f} refused with a 4xx and one line, memory {facts['memory_before_mb']:.0f} MB before and "
            f"{facts['memory_after_mb']:.0f} MB after ({origin})."
        )
    return "\n\n".join(lines)


@table("studio", "studio/latency", command="python -m benchmarks studio-latency --out results")
def studio_lines(found: Records) -> str:
    record = found[""]
    facts = record.details
    parts = ", ".join(f"{name} {value:.0f} ms" for name, value in facts["processor_ms"].items())
    return (
        f"From a slider to the new picture at {facts['points']:,} points (LinearNO of width "
        f"{facts['model']['width']} and depth {facts['model']['depth']}, browser without a GPU): median "
        f"{record.value:.0f} ms; processor time of the parts: {parts}. "
        f"First page after {facts['first_page_s']:.1f} s. Measured at a load average of {facts['load_average']:.0f} ({machine_and_commit(record)})."
    )
