"""The tables of README.md: accuracy, speed, the demo."""

import statistics
from collections.abc import Iterable

from benchmarks.tables.markdown import (
    Records,
    below,
    machine_and_commit,
    markdown_table,
    short_commit,
    table,
    title,
)
from linearno.reproduce.records import Record

PUBLISHED_EPOCHS = 500  # of every published error
POWERS = {10**6: "10⁶", 10**7: "10⁷", 10**8: "10⁸"}  # numbers of points in the speed table


@table("accuracy", "train", command="python -m benchmarks train darcy/linearno --out results")
def accuracy_table(found: Records) -> str:
    """A row per benchmark: test error of LinearNO on generated data, and published error."""
    runs = {name.removesuffix("/linearno"): run for name, run in found.items() if name.endswith("/linearno")}
    rows = []
    for name, run in runs.items():
        published, minutes = run.against.get("published"), run.device_minutes
        rows.append(
            [
                title(name) + ("" if run.unit == "relative L2" else f" ({run.unit})"),
                f"{run.value:.4f}",
                "" if published is None else f"{published:.4f}",
                "" if run.epochs is None else str(run.epochs),
                "" if minutes is None else f"{minutes:.0f}",
            ]
        )
    caption = (
        "Mean relative L2 error on the test split. Left: trained and tested on data generated with our\n"
        f"solvers; published: Hu et al. (2026), {PUBLISHED_EPOCHS} epochs on the original files. "
        "These are different data sets.\n"
        f"Minutes of training on one {_devices(runs.values())}."
    )
    head = ["benchmark", "LinearNO, generated data", "published", "epochs", "minutes"]
    return f"{markdown_table(head, rows)}\n\n{caption}"


def _devices(records: Iterable[Record]) -> str:
    """Accelerators of the records: the first part of the machine names."""
    return " and ".join(dict.fromkeys(record.machine.partition(",")[0] for record in records))


@table("speed", "bench/step", command="python -m benchmarks step --out results", others=True)
def speed_table(records: Records) -> str:
    """Times of training steps, compared with plain PyTorch, and of predictions on large meshes."""
    steps = {name: step for name, step in below(records, "bench/step").items() if step.against}
    rows = [
        [_step_title(name, step), f"{step.value:.3g} ms", *_plain_times(step)] for name, step in steps.items()
    ]
    head = ["training step, batch × points", "linearno, bf16", "plain, compiled", "plain, fp32"]
    caption = (
        "Forward, loss, backward, clipping and optimiser at the published settings; plain: the same network\n"
        f"written in plain PyTorch, with the same weights. Medians on one {_devices(steps.values())}."
        f"{_predictions(records)}"
    )
    return f"{markdown_table(head, rows)}\n\n{caption}"


def _step_title(name: str, step: Record) -> str:
    shape = step.details["shape"]
    return f"{title(name)}, {shape['batch']} × {shape['points']:,}"


def _plain_times(step: Record) -> list[str]:
    """Times of the fastest compiled and the eager fp32 plain implementation, with ratios to linearno."""
    compiled = [time for name, time in step.against.items() if "compiled" in name]
    times = min(compiled, default=None), step.against.get("plain, fp32")
    return ["" if time is None else f"{time:.3g} ms ({time / step.value:.2g}×)" for time in times]


def _predictions(records: Records) -> str:
    """Times of streamed predictions at 10⁶, 10⁷ and 10⁸ points."""
    growth = records.get("scale/growth/cuda")
    seconds = {} if growth is None else _growth_seconds(growth)
    model = None if growth is None else growth.details["model"]
    for record in below(records, "scale/predict").values():
        seconds[record.details["points"]] = statistics.median(record.details["seconds"])
        model = record.details["model"]
    parts = [
        f"{seconds[points]:.2g} s at {power} points" for points, power in POWERS.items() if points in seconds
    ]
    if not parts or model is None:
        return ""
    settings = f"width {model['width']}, depth {model['depth']}, bf16"
    return f"\nStreamed prediction ({settings}): {', '.join(parts)}."


def _growth_seconds(growth: Record) -> dict[int, float]:
    return {row["points"]: statistics.median(row["seconds"]) for row in growth.details["rows"]}


@table(
    "demo",
    "demo/darcy",
    command="linearno demo && python -m benchmarks results --record demo/linearno --record demo/transolver",
)
def demo_table(runs: Records) -> str:
    rows = []
    for model, run in runs.items():
        facts = run.details
        rows.append(
            [model, f"{facts['parameters']:,}", f"{run.value:.4f}", f"{facts['seconds']['train']:.0f} s"]
        )
    first = next(iter(runs.values()))
    rows.append(["mean field", "0", f"{first.details['mean_field']['relative_l2']:.4f}", ""])
    note = (
        f"`linearno demo`: Darcy flow, {first.details['samples']} unseen samples of 29×29 points, "
        f"seed {first.seed}, {first.details['device']}, {first.machine}, commit {short_commit(first)}.\n"
        "A demonstration, not a comparison: epochs and learning rate were chosen for LinearNO by this "
        "error,\nand with other settings Transolver came out ahead."
    )
    return f"{markdown_table(['model', 'parameters', 'test relative L2', 'training'], rows)}\n\n{note}"


@table("summary", "bench", command="python -m benchmarks attention --out results", others=True)
def summary_table(records: Records) -> str:
    """A row per record: the value of linearno and the best comparison value."""
    rows = []
    for prefix, label in (("bench/attention", "attention layer"), ("bench/step", "training step")):
        for key, record in below(records, prefix).items():
            best = min(record.against, key=lambda name: record.against[name], default=None)
            other = "" if best is None else f"{record.against[best]:.3g} ms ({best})"
            rows.append([f"{label}, {key}", f"{record.value:.3g} ms", other, machine_and_commit(record)])
    for key, record in below(records, "scale").items():
        if key.startswith(("predict", "cpu")):
            what = f"prediction at {record.details['points']:,} points"
            rows.append([what, f"{record.value:.3g} {record.unit}", "", machine_and_commit(record)])
    for key, record in below(records, "train").items():
        published = record.against.get("published")
        schedule = "" if record.epochs == PUBLISHED_EPOCHS else f", {PUBLISHED_EPOCHS} epochs"
        other = "" if published is None else f"{published:.4f} (published{schedule})"
        source = f", {record.data.partition(',')[0]} data" if record.data else ""
        changed = "".join(f", {name}={value}" for name, value in record.details.get("changed", {}).items())
        what = f"test {record.unit}, {key}{changed}, {record.epochs} epochs{source}"
        rows.append([what, f"{record.value:.4f}", other, machine_and_commit(record)])
    return markdown_table(["", "linearno", "best other", "from"], rows)
