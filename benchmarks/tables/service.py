"""Lines of docs/how-to/serve.md and docs/how-to/studio.md: load, attacks, latency."""

from benchmarks.tables.markdown import Records, machine_and_commit, table


@table("service", "serve", command="python -m benchmarks serve-load demo/linearno --out results")
def service_lines(found: Records) -> str:
    lines = []
    if (record := found.get("load")) is not None:
        facts, origin = record.details, machine_and_commit(record)
        wrong = f"{facts['lost']} lost, {facts['wrong']} wrong"
        lines.append(
            f"{facts['requests']:,} requests at {facts['points']:,} points, {facts['concurrent']} at a time, "
            f"each compared with a direct prediction: {wrong}; {record.value:.0f} requests/s, "
            f"median {facts['median_ms']:.0f} ms ({origin})."
        )
    if (record := found.get("malicious")) is not None:
        facts, origin = record.details, machine_and_commit(record)
        memory = [f"{facts[f'memory_{when}_mb']:.0f} MB {when}" for when in ("before", "after")]
        lines.append(
            f"{facts['uploads']} malformed or malicious uploads of {facts['kinds']} kinds: "
            f"{record.value:.0f} refused with a 4xx and one line; memory {' and '.join(memory)} ({origin})."
        )
    return "\n\n".join(lines)


@table("studio", "studio/latency", command="python -m benchmarks studio-latency --out results")
def studio_lines(found: Records) -> str:
    record = found[""]
    facts = record.details
    width, depth = (facts["model"][name] for name in ("width", "depth"))
    times = ", ".join(f"{name} {value:.0f} ms" for name, value in facts["processor_ms"].items())
    return (
        f"From a slider to the new picture at {facts['points']:,} points (LinearNO, width {width} "
        f"and depth {depth}, browser without a GPU): median {record.value:.0f} ms; processor time of "
        f"the parts: {times}. First page after {facts['first_page_s']:.1f} s. Measured at a load average of "
        f"{facts['load_average']:.0f} ({machine_and_commit(record)})."
    )
