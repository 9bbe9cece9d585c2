"""Write the figures of docs/measured.md and README.md from the records in results/. Nothing is typed by hand.

python benchmarks/write_docs.py [--demo demo]    with --demo also record a finished `linearno demo`
"""

import argparse
import re
from pathlib import Path
from typing import Any

from linearno.core.artifacts import read_json, write_json, write_text
from linearno.core.provenance import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
MODELS = ("linearno", "transolver")


def record_demo(folder: Path) -> None:
    """Keep the numbers of a demo: metrics, recipe, seed, commit, machine; no paths."""
    runs = {}
    for model in MODELS:
        metrics, card = (read_json(folder / model / name, how="") for name in ("metrics.json", "model.json"))
        kept = (
            "samples",
            "relative_l2",
            "mean_field",
            "parameters",
            "seconds",
            "device",
            "precision",
            "protocol",
        )
        facts = {key: card[key] for key in ("recipe", "seed", "commit", "versions")}
        runs[model] = {key: metrics[key] for key in kept} | facts
    write_json(RESULTS / "demo.json", {"runs": runs, "machine": machine()})


def record(name: str) -> Any:
    return read_json(RESULTS / f"{name}.json", how="run the benchmark that writes it")


def demo_table() -> str:
    found = record("demo")
    rows = ["| model | parameters | test relative L2 | training |", "|---|---|---|---|"]
    for model, run in found["runs"].items():
        error, seconds = run["relative_l2"]["mean"], run["seconds"]["train"]
        rows.append(f"| {model} | {run['parameters']:,} | {error:.4f} | {seconds:.0f} s |")
    first = found["runs"]["linearno"]
    rows.append(f"| the mean field | 0 | {first['mean_field']['relative_l2']:.4f} | |")
    note = (
        f"\n`linearno demo`: Darcy flow, {first['samples']} unseen samples of 29×29 points, "
        f"seed {first['seed']}, {first['device']}, {found['machine']}, commit {first['commit']}.\n"
        "A demonstration, not a comparison: epochs and learning rate were chosen for LinearNO by this "
        "error,\nand with other settings Transolver came out ahead."
    )
    return "\n".join(rows) + "\n" + note


def cpu_table() -> str:
    found = record("darcy_cpu")
    names = {
        "inference_ms": "inference, ms",
        "inference_peak_mib": "peak memory of inference, MiB",
        "training_ms": "forward and backward, ms",
    }
    rows = ["| Darcy shape, 1×7225 points | linearno | plain write-up | ratio |", "|---|---|---|---|"]
    for key, words in names.items():
        ours, plain = (found["median"][name][key] for name in ("linearno", "write-up"))
        rows.append(f"| {words} | {ours:.0f} | {plain:.0f} | {found['write_up_over_linearno'][key]:.2f} |")
    pairs = zip(*(found["runs"][name] for name in ("linearno", "write-up")), strict=True)
    ratios = [plain["inference_ms"] / ours["inference_ms"] for ours, plain in pairs]
    note = (
        f"\nMedians of {found['rounds']} rounds in fresh processes; round by round the ratio of inference "
        f"times lies between\n{min(ratios):.2f} and {max(ratios):.2f}. fp32, {found['threads']} threads, "
        f"{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}."
    )
    return "\n".join(rows) + "\n" + note


def kept_line() -> str:
    found = record("darcy_cpu_kept_memory")
    ours, plain = (found["median"][name]["inference_ms"] for name in ("linearno", "write-up"))
    return (
        f"With `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` at 1 GB for both, so that neither waits "
        f"for fresh pages,\ninference takes {ours:.0f} and {plain:.0f} ms: {plain / ours:.2f} times."
    )


def generation_line() -> str:
    found = record("darcy_generation")
    samples = sum(found["sizes"].values())
    return (
        f"Darcy at {found['resolution']}×{found['resolution']}: {samples:,} samples solved and written "
        f"in {found['seconds']:.0f} s with {found['workers']} workers "
        f"({found['machine']}, commit {found['commit']})."
    )


def theorem_line() -> str:
    found = record("theorem1")
    sizes = found["sizes"]
    return f"Measured slope {found['slope']:.3f} for N = {sizes[0]} … {sizes[-1]:,}."


BLOCKS = {
    "demo": demo_table,
    "cpu": cpu_table,
    "kept": kept_line,
    "generation": generation_line,
    "theorem1": theorem_line,
}


def fill(path: Path) -> None:
    """Write each block of the page between its marks <!-- name --> and <!-- /name -->."""

    def block(found: re.Match[str]) -> str:
        name = found.group(1)
        return f"<!-- {name} -->\n{BLOCKS[name]()}\n<!-- /{name} -->"

    text = path.read_text(encoding="utf-8")
    write_text(path, re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", block, text, flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path)
    options = parser.parse_args()
    if options.demo:
        record_demo(options.demo)
    for page in ("README.md", "docs/measured.md"):
        fill(ROOT / page)


if __name__ == "__main__":
    main()
