"""LinearNO on a CPU at the Darcy shape, beside a straightforward write-up of the same network.

    python -m benchmarks darcy-cpu [--rounds 5] [--out results] [--id bench/cpu/darcy]

Each measurement has a process of its own, ours and the write-up in turn, so that neither inherits the
other's memory. Times are medians over the rounds of the median of a process; memory is the growth of the
resident set during one forward pass.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.plain_model import PlainLinearNO, plain_twin
from benchmarks.records import Record, write_record
from benchmarks.timing import resident_mib
from linearno import LinearNO
from linearno.core.provenance import commit, machine, versions

SHAPE: dict[str, Any] = {"width": 128, "depth": 8, "heads": 8, "slices": 64, "grid": (85, 85)}
CONTESTANTS = ("linearno", "write-up")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "linearno":
        return LinearNO(coords=2, inputs=1, outputs=1, stem="conv", merge_layers=2, **SHAPE)
    return PlainLinearNO(features=3, **SHAPE)


def question() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(1, 85 * 85, 2), torch.randn(1, 85 * 85, 1)


def measure(name: str) -> dict[str, float | None]:
    """All figures of one contestant, in this process. Times in ms, memory in MiB."""
    model, asked = build(name), question()

    def infer() -> None:
        with torch.inference_mode():
            model(*asked)

    def train() -> None:
        model.zero_grad()
        model(*asked).square().mean().backward()

    infer_ms = median_ms(infer, 15)
    return {
        "inference_ms": infer_ms,
        "inference_peak_mib": resident_mib(infer),
        "training_ms": median_ms(train, 5),
    }


def median_ms(work: Callable[[], None], repeats: int) -> float:
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def agree() -> float:
    """The largest difference of the two outputs with the same weights, relative to the largest value."""
    ours = build("linearno")
    with torch.inference_mode():
        first, second = (model(*question()) for model in (ours, plain_twin(ours)))
    return ((first - second).abs().max() / second.abs().max()).item()


def compete(rounds: int) -> dict[str, list[dict[str, float]]]:
    """The figures of every round, the contestants in turn."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for turn in range(rounds):
        for name in CONTESTANTS:
            child = subprocess.run(
                [sys.executable, __file__, "--only", name], capture_output=True, check=True
            )
            runs[name].append(json.loads(child.stdout))
            print(
                f"round {turn + 1}  {name:9s}",
                {k: round(v, 1) for k, v in runs[name][-1].items()},
                flush=True,
            )
    return runs


def medians(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }


def as_record(id: str, measured: dict[str, Any]) -> Record:
    """What `main` measured, with the inference times as the figure."""
    origin = {key: measured[key] for key in ("machine", "versions", "commit")}
    ours, plain = (measured["median"][name]["inference_ms"] for name in CONTESTANTS)
    details = {key: value for key, value in measured.items() if key not in origin}
    figure = {"id": id, "value": ours, "unit": "ms", "against": {"plain write-up": plain}}
    return Record.make(figure | origin | {"details": details})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    parser.add_argument("--id", default="bench/cpu/darcy", help="of the record")
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only)))
        return
    difference = agree()
    runs = compete(options.rounds)
    result = medians(runs)
    ours, plain = (result[name] for name in CONTESTANTS)
    ratios = {key: plain[key] / ours[key] for key in ours}
    for key in ours:
        print(f"{key:18s} linearno {ours[key]:7.1f}   write-up {plain[key]:7.1f}   ratio {ratios[key]:.2f}")
    measured = {
        "shape": {"batch": 1, "points": 7225} | SHAPE,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "largest_relative_difference": difference,
        "median": result,
        "runs": runs,
        "write_up_over_linearno": ratios,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }
    if options.out:
        print(f"record: {write_record(options.out, as_record(options.id, measured))}")


if __name__ == "__main__":
    main()
