"""Records as Markdown: one writer for each block of the pages. Nothing there is typed by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.records import Record

Records = Mapping[str, Record]
Block = Callable[[Records], str]
PUBLISHED_EPOCHS = 500  # of every figure that is compared with
NAMES = {"ns": "Navier–Stokes"}  # of sets whose short name is no word


def under(records: Records, prefix: str) -> dict[str, Record]:
    """The records whose ids begin with `prefix/`, by the rest of their ids."""
    return {id.removeprefix(f"{prefix}/"): r for id, r in records.items() if id.startswith(f"{prefix}/")}


def missing(command: str) -> str:
    return f"Not yet measured: `{command}` does it."


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" ".join(["|", *(f"{cell} |" if cell else "|" for cell in cells)]) for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def origin(record: Record) -> str:
    return f"{record.machine}, torch {record.versions.get('torch', '?')}, commit {_commit(record)}"


def _from(record: Record) -> str:
    return f"{record.machine}, {_commit(record)}"


def _commit(record: Record) -> str:
    """Short, and with the mark of a tree that was changed."""
    commit, mark, state = (record.commit or "unknown").partition("-")
    return commit[:10] + mark + state


def demo_table(records: Records) -> str:
    runs = under(records, "demo/darcy")
    if "linearno" not in runs:
        return missing(
            "linearno demo && python -m benchmarks results --record demo/linearno --record demo/transolver"
        )
    rows = []
    for model, run in runs.items():
        facts = run.details
        seconds = facts["seconds"]["train"]
        rows.append([model, f"{facts['parameters']:,}", f"{run.value:.4f}", f"{seconds:.0f} s"])
    first = runs["linearno"]
    rows.append(["the mean field", "0", f"{first.details['mean_field']['relative_l2']:.4f}", ""])
    note = (
        f"`linearno demo`: Darcy flow, {first.details['samples']} unseen samples of 29×29 points, "
        f"seed {first.seed}, {first.details['device']}, {first.machine}, commit {_commit(first)}.\n"
        "A demonstration, not a comparison: epochs and learning rate were chosen for LinearNO by this "
        "error,\nand with other settings Transolver came out ahead."
    )
    return f"{markdown_table(['model', 'parameters', 'test relative L2', 'training'], rows)}\n\n{note}"


def gallery_table(records: Records) -> str:
    runs = under(records, "demo/gallery")
    if not runs:
        return missing(
            "linearno gallery && python -m benchmarks results --record gallery/darcy/run --record …"
        )
    rows = []
    for name, run in runs.items():
        facts = run.details
        samples = f"{facts['settings']['data']['train']:,} + {facts['samples']}"
        errors = [f"{run.value:.3f} ({run.unit})", f"{run.against['mean field']:.3f}"]
        spent = [f"{facts['seconds'][what]:.0f}" for what in ("solve", "train")]
        rows.append([facts.get("title", name), samples, f"{facts['parameters']:,}", *errors, *spent])
    groups = dict.fromkeys(f"{run.details['device']}, {origin(run)}" for run in runs.values())
    head = [
        "benchmark",
        "samples + unseen",
        "parameters",
        "test error",
        "the mean field",
        "solving, s",
        "training, s",
    ]
    note = (
        f"`linearno gallery`: {'; '.join(groups)}.\n"
        "Small sets and small models, with settings chosen by these errors."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def cpu_table(records: Records) -> str:
    record = records.get("bench/cpu/darcy")
    if record is None:
        return missing("python -m benchmarks darcy-cpu --out results")
    found = record.details
    names = {
        "inference_ms": "inference, ms",
        "inference_peak_mib": "peak memory of inference, MiB",
        "training_ms": "forward and backward, ms",
    }
    rows = []
    for key, words in names.items():
        ours, plain = (found["median"][name][key] for name in ("linearno", "write-up"))
        ratio = found["write_up_over_linearno"][key]
        rows.append([words, f"{ours:.0f}", f"{plain:.0f}", f"{ratio:.2f}"])
    pairs = zip(*(found["runs"][name] for name in ("linearno", "write-up")), strict=True)
    ratios = [plain["inference_ms"] / ours["inference_ms"] for ours, plain in pairs]
    note = (
        f"Medians of {found['rounds']} rounds in fresh processes; round by round the ratio of inference "
        f"times lies between\n{min(ratios):.2f} and {max(ratios):.2f}. fp32, {found['threads']} threads, "
        f"{origin(record)}."
    )
    head = ["Darcy shape, 1×7225 points", "linearno", "plain write-up", "ratio"]
    return f"{markdown_table(head, rows)}\n\n{note}"


def kept_line(records: Records) -> str:
    record = records.get("bench/cpu/darcy_kept_memory")
    if record is None:
        return missing("python -m benchmarks darcy-cpu --out results --id bench/cpu/darcy_kept_memory")
    ours, plain = (record.details["median"][name]["inference_ms"] for name in ("linearno", "write-up"))
    return (
        f"With `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` at 1 GB for both, so that neither waits "
        f"for fresh pages,\ninference takes {ours:.0f} and {plain:.0f} ms: {plain / ours:.2f} times."
    )


def generation_lines(records: Records) -> str:
    found = under(records, "generate")
    if not found:
        return missing("python -m benchmarks generation darcy --out results")
    return "\n".join(_generation(name.removesuffix("_device"), record) for name, record in found.items())


def _generation(name: str, record: Record) -> str:
    found = record.details
    samples = sum(found["sizes"].values())
    how = f"with {found['workers']} workers" if found["device"] == "cpu" else f"on {found['device']}"
    machine = record.machine.removeprefix(f"{found['device']}, ")
    scheme = f", scheme {found['scheme']}" if found.get("scheme") else ""
    return (
        f"{NAMES.get(name, name.capitalize())} at resolution {found['resolution']}{scheme}: "
        f"{samples:,} samples solved and written in {record.value:.0f} s {how} "
        f"({machine}, commit {_commit(record)})."
    )


def schemes_table(records: Records) -> str:
    """Both schemes of the Navier–Stokes solver beside a refined solution, and beside the published one."""
    record = records.get("solver/navier_stokes")
    if record is None:
        return missing("python -m benchmarks navier-stokes-schemes --device cuda --out results")
    found = record.details
    head = ["scheme", "grid", "type", "step", "s", "error", "from the published one"]
    rows = [
        [
            row["scheme"],
            f"{row['resolution']}²",
            row["dtype"],
            f"{row['dt']:.3g}",
            f"{row['seconds']:.2g}",
            f"{row['error'][-1]:.1e}",
            f"{row['from_first'][-1]:.1e}" if row["from_first"][-1] else "",
        ]
        for row in found["rows"]
    ]
    note = f"Relative L2 at t = {found['frames']}, mean of {found['samples']} samples solved at once"
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(record)}."


def grids_table(records: Records) -> str:
    """The usual scheme of the Navier–Stokes solver on coarser grids, half way and at the end."""
    record = records.get("solver/navier_stokes_grids")
    if record is None:
        return missing(
            "python -m benchmarks navier-stokes-schemes --coarse --frames 20 --samples 2 --out results"
        )
    found = record.details
    half, end = found["frames"] // 2, found["frames"]
    rows = [
        [f"{row['resolution']}²", f"{row['error'][half - 1]:.1e}", f"{row['error'][-1]:.1e}"]
        for row in found["rows"]
    ]
    note = (
        f"Relative L2 beside {found['rows'][0]['resolution']}² in float64, mean of {found['samples']} samples"
    )
    return f"{markdown_table(['grid', f't = {half}', f't = {end}'], rows)}\n\n{note}. {origin(record)}."


def meshes_table(records: Records) -> str:
    """How far forgings on one mesh are from those on the next finer one."""
    record = records.get("solver/forging_meshes")
    if record is None:
        return missing("python -m benchmarks forging-meshes --out results")
    rows = [
        [
            f"{row['nodes']} and {row['finer']}",
            f"{row['relative_l2']:.1e}",
            f"{row['slide_apart'][-1]:.2g} of {row['slide'][-1]:.2g} mm",
        ]
        for row in record.details["rows"]
    ]
    head = ["nodes along the block", "relative L2 between them", "in how far a block has slid"]
    turned = record.details["turned_corners"].items()
    shares = ", ".join(f"{1000 * share:.2g} on {nodes} nodes" for nodes, share in turned)
    note = (
        f"Means of {record.details['dies']} random dies; the last column is that of the last frame, in which "
        f"of 1,000 elements so many have a corner that is turned inside out: {shares}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(record)}."


def flows_table(records: Records) -> str:
    """Airfoil flows of ours beside what is told of the published ones."""
    record = records.get("solver/airfoil_flows")
    if record is None:
        return missing("python -m benchmarks airfoil-flows --out results")
    rows = [
        [row["what"], row["published"] or "", f"{row['mean']:.2g} ({row['least']:.2g} to {row['most']:.2g})"]
        for row in record.details["rows"]
    ]
    note = f"Means of {record.details['airfoils']} random airfoils, and the least and the most among them"
    return f"{markdown_table(['', 'published', 'ours'], rows)}\n\n{note}. {origin(record)}."


def theorem_line(records: Records) -> str:
    record = records.get("reproduce/theorem1")
    if record is None:
        return missing("python -m benchmarks theorem1 --json results/reproduce/theorem1.json")
    sizes = record.details["sizes"]
    return f"Measured slope {record.value:.3f} for N = {sizes[0]} … {sizes[-1]:,}."


def attention_table(records: Records) -> str:
    return _contest(under(records, "bench/attention")) or missing(
        "python -m benchmarks attention --out results"
    )


def step_table(records: Records) -> str:
    return _contest(under(records, "bench/step")) or missing("python -m benchmarks step --out results")


def parts_table(records: Records) -> str:
    """Of which kinds of kernels our steps consist: a row for each kind, a column for each shape."""
    steps = under(records, "bench/step")
    found = {key: record.details["parts"] for key, record in steps.items() if record.details.get("parts")}
    if not found:
        return missing("python -m benchmarks step --out results")
    names = list(dict.fromkeys(name for parts in found.values() for name in parts))

    def cell(parts: dict[str, Any], name: str) -> str:
        return f"{parts[name]['us']:.0f} ({parts[name]['kernels']:.0f})" if name in parts else ""

    rows = [[name, *(cell(parts, name) for parts in found.values())] for name in names]
    rows.append(["the step, by the clock", *(f"{1e3 * steps[key].value:.0f}" for key in found)])
    return markdown_table(["µs (kernels)", *found], rows)


def _contest(found: dict[str, Record]) -> str:
    """A row for each contestant, ours of the value first, and a column for each shape."""
    if not found:
        return ""
    values = list(dict.fromkeys(r.details["ours"] for r in found.values()))
    rivals = [name for r in found.values() for name in (*r.details["times_ms"], *r.details["absent"])]
    names = list(dict.fromkeys([*values, *rivals]))
    head = ["ms: median (quartiles); peak MiB", *(f"{key} {_size(r.details)}" for key, r in found.items())]
    rows = [[name, *(_cell(r.details, name) for r in found.values())] for name in names]
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


def _notes(found: dict[str, Record]) -> str:
    """Where the figures come from, a line for each machine and commit; then how near the ceilings we are."""
    groups: dict[str, list[str]] = {}
    for key, record in found.items():
        groups.setdefault(origin(record), []).append(key)
    lines = [f"{', '.join(keys)}: {where}." for where, keys in groups.items()]
    parts = {
        key: record.details["of_ceiling"] for key, record in found.items() if "of_ceiling" in record.details
    }
    if parts:
        shown = (
            f"{key} {' and '.join(f'{100 * part:.0f} % ({what})' for what, part in kinds.items())}"
            for key, kinds in parts.items()
        )
        lines.append(f"Of the ceilings measured in the same process ours reaches: {'; '.join(shown)}.")
    return "\n".join(lines)


def changed(record: Record) -> str:
    """The settings that are not those of the recipe, after a comma each."""
    return "".join(f", {name}={value}" for name, value in record.details.get("changed", {}).items())


def train_table(records: Records) -> str:
    found = under(records, "train")
    if not found:
        return missing("python -m benchmarks train darcy/linearno --out results")
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
    rows = []
    for name, record in found.items():
        published, minutes = record.against.get("published"), record.device_minutes
        seeds = record.details.get("seeds", [])
        errors = [run["value"] for run in seeds]
        spread = f" (mean of {min(errors):.5f} to {max(errors):.5f})" if seeds else ""
        seed = ", ".join(str(run["seed"]) for run in seeds) or record.seed
        rows.append(
            [
                name + changed(record),
                f"{record.value:.5f} {record.unit}{spread}",
                "" if published is None else f"{published:.4f}",
                *("" if fact is None else str(fact) for fact in (record.epochs, seed, record.data)),
                "" if minutes is None else f"{minutes:.1f}",
                _from(record),
            ]
        )
    return markdown_table(head, rows)


def precision_table(records: Records) -> str:
    found = under(records, "study/precision")
    if not found:
        return missing("python -m benchmarks precision darcy/linearno --out results")
    return "\n\n".join(_precisions(record) for record in found.values())


def _precisions(record: Record) -> str:
    runs = record.details["runs"]
    kinds, seeds = (list(dict.fromkeys(run[key] for run in runs)) for key in ("precision", "seed"))
    errors = {(run["precision"], run["seed"]): run["error"] for run in runs}
    rows = [[kind, *(f"{errors[kind, seed]:.5f}" for seed in seeds)] for kind in kinds]
    head = [f"{record.recipe}, {record.epochs} epochs", *(f"seed {seed}" for seed in seeds)]
    note = f"Test {record.details['error']}; {record.unit}: {record.value:.3f} on average. {origin(record)}."
    return f"{markdown_table(head, rows)}\n\n{note}"


def summary_table(records: Records) -> str:
    """The README's: one row for each figure, ours beside the best of the others."""
    rows = []
    for prefix, words in (("bench/attention", "attention layer"), ("bench/step", "training step")):
        for key, record in under(records, prefix).items():
            best = min(record.against, key=lambda name: record.against[name], default=None)
            other = "" if best is None else f"{record.against[best]:.3g} ms ({best})"
            rows.append([f"{words}, {key}", f"{record.value:.3g} ms", other, _from(record)])
    for key, record in under(records, "scale").items():
        if key.startswith(("predict", "cpu")):
            what = f"prediction at {record.details['points']:,} points"
            rows.append([what, f"{record.value:.3g} {record.unit}", "", _from(record)])
    for key, record in under(records, "train").items():
        published = record.against.get("published")
        schedule = "" if record.epochs == PUBLISHED_EPOCHS else f", {PUBLISHED_EPOCHS} epochs"
        other = "" if published is None else f"{published:.4f} (published{schedule})"
        source = f", {record.data.partition(',')[0]} data" if record.data else ""
        what = f"test {record.unit}, {key}{changed(record)}, {record.epochs} epochs{source}"
        rows.append([what, f"{record.value:.4f}", other, _from(record)])
    if not rows:
        return missing("python -m benchmarks attention --out results")
    return markdown_table(["", "linearno", "best of the others", "from"], rows)


BLOCKS: dict[str, Block] = {
    "attention": attention_table,
    "cpu": cpu_table,
    "demo": demo_table,
    "flows": flows_table,
    "gallery": gallery_table,
    "generation": generation_lines,
    "grids": grids_table,
    "kept": kept_line,
    "meshes": meshes_table,
    "parts": parts_table,
    "precision": precision_table,
    "schemes": schemes_table,
    "step": step_table,
    "summary": summary_table,
    "theorem1": theorem_line,
    "train": train_table,
}
