"""Errors of trained models: tables of docs/measured.md and docs/gallery.md."""

from benchmarks.tables.markdown import Records, machine_and_commit, markdown_table, origin, table
from benchmarks.tables.readme import PUBLISHED_EPOCHS
from linearno.reproduce.records import Record


@table("train", "train", command="python -m benchmarks train darcy/linearno --out results")
def train_table(found: Records) -> str:
    head = [
        "run",
        "test error",
        f"published ({PUBLISHED_EPOCHS} epochs)",
        "epochs",
        "seeds",
        "data",
        "device minutes",
        "machine, commit",
    ]
    return markdown_table(head, [_train_row(name, record) for name, record in found.items()])


def _train_row(name: str, record: Record) -> list[str]:
    published, minutes = record.against.get("published"), record.device_minutes
    seeds = record.details.get("seeds", [])
    errors = [run["value"] for run in seeds]
    spread = f" (mean of {min(errors):.5f} to {max(errors):.5f})" if seeds else ""
    seed = ", ".join(str(run["seed"]) for run in seeds) or record.seed
    return [
        name + "".join(f", {key}={value}" for key, value in record.details.get("changed", {}).items()),
        f"{record.value:.5f} {record.unit}{spread}",
        "" if published is None else f"{published:.4f}",
        *("" if fact is None else str(fact) for fact in (record.epochs, seed, record.data)),
        "" if minutes is None else f"{minutes:.1f}",
        machine_and_commit(record),
    ]


@table(
    "pod_gp",
    "study/pod-gp",
    command="linearno train pipe/pod-gp --set data.train=100 --out RUN && "
    "python -m benchmarks results --record RUN --id study/pod-gp/pipe-100",
)
def pod_gp_table(found: Records) -> str:
    runs = sorted(found.values(), key=lambda run: run.details["settings"]["data"]["train"])
    rows = [
        [
            str(run.details["settings"]["data"]["train"]),
            f"{100 * run.value:.2f} %",
            f"{100 * run.against['mean field']:.1f} %",
            f"{run.details['seconds']['train']:.1f}",
            f"{run.details['parameters'] / 1e6:.1f} M",
        ]
        for run in runs
    ]
    head = ["training samples", f"test {runs[0].unit}", "mean field", "seconds of the fit", "stored numbers"]
    origins = ", ".join(dict.fromkeys(f"{run.details['device']}, {origin(run)}" for run in runs))
    note = f"`{runs[0].recipe}`, {runs[0].details['samples']} test samples, {runs[0].data}: {origins}."
    return f"{markdown_table(head, rows)}\n\n{note}"


@table("precision", "study/precision", command="python -m benchmarks precision darcy/linearno --out results")
def precision_table(found: Records) -> str:
    return "\n\n".join(_precisions(record) for record in found.values())


def _precisions(record: Record) -> str:
    runs = record.details["runs"]
    kinds, seeds = (list(dict.fromkeys(run[key] for run in runs)) for key in ("precision", "seed"))
    errors = {(run["precision"], run["seed"]): run["error"] for run in runs}
    rows = [[kind, *(f"{errors[kind, seed]:.5f}" for seed in seeds)] for kind in kinds]
    head = [f"{record.recipe}, {record.epochs} epochs", *(f"seed {seed}" for seed in seeds)]
    note = f"Test {record.details['error']}; {record.unit}: {record.value:.3f} on average. {origin(record)}."
    return f"{markdown_table(head, rows)}\n\n{note}"


@table(
    "gallery",
    "demo/gallery",
    command="linearno gallery && python -m benchmarks results --record gallery/darcy/run --record …",
)
def gallery_table(runs: Records) -> str:
    rows = []
    for name, run in runs.items():
        facts = run.details
        samples = f"{facts['settings']['data']['train']:,} + {facts['samples']}"
        errors = [f"{run.value:.3f} ({run.unit})", f"{run.against['mean field']:.3f}"]
        seconds = [f"{facts['seconds'][stage]:.0f}" for stage in ("solve", "train")]
        rows.append([facts.get("title", name), samples, f"{facts['parameters']:,}", *errors, *seconds])
    origins = dict.fromkeys(f"{run.details['device']}, {origin(run)}" for run in runs.values())
    head = [
        "benchmark",
        "training + test samples",
        "parameters",
        "test error",
        "mean field",
        "solver, s",
        "training, s",
    ]
    note = (
        f"`linearno gallery`: {'; '.join(origins)}.\n"
        "Small sets and small models, with settings chosen by these errors."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


@table(
    "theorem1",
    "reproduce/theorem1",
    command="linearno reproduce theorem1 --records results",
)
def theorem_line(found: Records) -> str:
    sizes = found[""].details["sizes"]
    return f"Measured slope {found[''].value:.3f} for N = {sizes[0]} … {sizes[-1]:,}."
