"""Tables of docs/measured.md about times of layers and steps."""

from typing import Any

from benchmarks.tables.markdown import Records, markdown_table, origin, table, title
from linearno.reproduce.records import Record

CPU_FIGURES = {
    "inference_ms": "inference, ms",
    "inference_peak_mib": "peak memory of inference, MiB",
    "training_ms": "forward and backward, ms",
}


@table("cpu", "bench/cpu/darcy", command="python -m benchmarks darcy-cpu --out results")
def cpu_table(found: Records) -> str:
    record = found[""]
    facts = record.details
    rows = []
    for key, label in CPU_FIGURES.items():
        ours, plain = (facts["median"][name][key] for name in ("linearno", "write-up"))
        rows.append([label, f"{ours:.0f}", f"{plain:.0f}", f"{facts['write_up_over_linearno'][key]:.2f}"])
    pairs = zip(*(facts["runs"][name] for name in ("linearno", "write-up")), strict=True)
    ratios = [plain["inference_ms"] / ours["inference_ms"] for ours, plain in pairs]
    note = (
        f"Medians of {facts['rounds']} rounds in fresh processes; the ratio of inference times "
        f"per round\nis between {min(ratios):.2f} and {max(ratios):.2f}. fp32, {facts['threads']} threads, "
        f"{origin(record)}."
    )
    head = ["Darcy shape, 1×7225 points", "linearno", "plain PyTorch", "ratio"]
    return f"{markdown_table(head, rows)}\n\n{note}"


@table(
    "kept",
    "bench/cpu/darcy_kept_memory",
    command="python -m benchmarks darcy-cpu --out results --id bench/cpu/darcy_kept_memory",
)
def allocator_line(found: Records) -> str:
    ours, plain = (found[""].details["median"][name]["inference_ms"] for name in ("linearno", "write-up"))
    return (
        f"With `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` at 1 GB for both, which avoids page "
        f"faults,\ninference takes {ours:.0f} and {plain:.0f} ms, a ratio of {plain / ours:.2f}."
    )


@table("parts", "bench/step", command="python -m benchmarks step --out results")
def parts_table(steps: Records) -> str:
    """Device time of linearno steps: a row per kind of kernel, a column per shape."""
    found = {key: record.details["parts"] for key, record in steps.items() if record.details.get("parts")}
    names = list(dict.fromkeys(name for parts in found.values() for name in parts))

    def cell(parts: dict[str, Any], name: str) -> str:
        return f"{parts[name]['us']:.0f} ({parts[name]['kernels']:.0f})" if name in parts else ""

    rows = [[name, *(cell(parts, name) for parts in found.values())] for name in names]
    rows.append(["duration of the step", *(f"{1e3 * steps[key].value:.0f}" for key in found)])
    return markdown_table(["µs (kernels)", *found], rows)


@table("attention", "bench/attention", command="python -m benchmarks attention --out results")
@table("step", "bench/step", command="python -m benchmarks step --out results")
def times_table(found: Records) -> str:
    """A row per candidate, linearno first, and a column per shape."""
    ours = list(dict.fromkeys(record.details["ours"] for record in found.values()))
    others = [
        name for record in found.values() for name in (*record.details["times_ms"], *record.details["absent"])
    ]
    head = [
        "ms: median (quartiles); peak MiB",
        *(f"{key} {_size(record.details)}" for key, record in found.items()),
    ]
    rows = [
        [name, *(_cell(record.details, name) for record in found.values())]
        for name in dict.fromkeys([*ours, *others])
    ]
    return f"{markdown_table(head, rows)}\n\n{_notes(found)}"


def _size(details: dict[str, Any]) -> str:
    return f"{details['shape']['batch']}×{details['shape']['points']}"


def _cell(details: dict[str, Any], name: str) -> str:
    if name in details["absent"]:
        return details["absent"][name].replace("|", "/")
    if name not in details["times_ms"]:
        return ""
    timing, peak = details["times_ms"][name], details["peak_mib"].get(name)
    low, high = timing["quartiles"]
    shown = f"{timing['median']:.3g} ({low:.3g}–{high:.3g})" + ("" if peak is None else f"; {peak:.0f}")
    return f"**{shown}**" if name == details["ours"] else shown


def _notes(found: Records) -> str:
    """A line per machine and commit, then the fractions of the device's measured peak rates."""
    groups: dict[str, list[str]] = {}
    for key, record in found.items():
        groups.setdefault(origin(record), []).append(key)
    lines = [f"{', '.join(keys)}: {name}." for name, keys in groups.items()]
    shares = [_share(key, record) for key, record in found.items() if "of_ceiling" in record.details]
    if shares:
        lines.append(f"Share of the ceilings measured in the same process: {'; '.join(shares)}.")
    return "\n".join(lines)


def _share(key: str, record: Record) -> str:
    fractions = record.details["of_ceiling"].items()
    return f"{key} {' and '.join(f'{100 * value:.0f} % ({kind})' for kind, value in fractions)}"


@table("model_steps", "bench/models/step", command="python -m benchmarks model-steps --out results")
def model_steps_table(found: Records) -> str:
    """A row per benchmark and model: the step as trained, eager, and with torch.compile."""
    record = found[""]
    rows = []
    for name, facts in sorted(record.details["models"].items()):
        if "times_ms" not in facts:
            continue
        benchmark, model = name.split("/", 1)
        times = {kind: f"{timing['median']:.3g}" for kind, timing in facts["times_ms"].items()}
        kinds = (times.get(kind, "") for kind in ("step", "eager", "compiled"))
        rows.append([f"`{model}`", title(benchmark), f"{facts['parameters']:,}", facts["precision"], *kinds])
    head = ["model", "benchmark", "parameters", "precision", "step, ms", "eager", "compiled"]
    return f"{markdown_table(head, rows)}\n\nMedians; {origin(record)}."
