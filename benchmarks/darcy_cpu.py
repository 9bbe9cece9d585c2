"""Compare LinearNO on a CPU at the Darcy shape with the same network in plain PyTorch."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.plain_model import PlainLinearNO, plain_twin
from benchmarks.timing import peak_resident_mib
from linearno import LinearNO
from linearno.cli.shared import console
from linearno.reproduce.records import new_record

SHAPE: dict[str, Any] = {"width": 128, "depth": 8, "heads": 8, "slices": 64, "grid": (85, 85)}
CANDIDATES = ("linearno", "write-up")  # keys of the record; "write-up" is the plain PyTorch network


def build(name: str) -> nn.Module:
    """The network of a candidate, with random weights."""
    torch.manual_seed(0)
    if name == "linearno":
        return LinearNO(coords=2, inputs=1, outputs=1, stem="conv", merge_layers=2, **SHAPE)
    return PlainLinearNO(features=3, **SHAPE)


def fields() -> tuple[Tensor, Tensor]:
    """Random coordinates (1, 7225, 2) and inputs (1, 7225, 1)."""
    torch.manual_seed(1)
    return torch.rand(1, 85 * 85, 2), torch.randn(1, 85 * 85, 1)


def measure(name: str) -> dict[str, float | None]:
    """Times (ms) and memory (MiB) of one candidate, measured in this process."""
    model, batch = build(name), fields()

    def infer() -> None:
        with torch.inference_mode():
            model(*batch)

    def train() -> None:
        model.zero_grad()
        model(*batch).square().mean().backward()

    infer_ms = median_ms(infer, 15)
    return {
        "inference_ms": infer_ms,
        "inference_peak_mib": peak_resident_mib(infer),
        "training_ms": median_ms(train, 5),
    }


def median_ms(work: Callable[[], None], repeats: int) -> float:
    """Median time of `repeats` calls after three warm-up calls."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def largest_difference() -> float:
    """Largest difference of the outputs with the same weights, relative to the largest value."""
    model = build("linearno")
    with torch.inference_mode():
        ours, plain = (network(*fields()) for network in (model, plain_twin(model)))
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def run_rounds(rounds: int) -> dict[str, list[dict[str, float]]]:
    """Measure each candidate in a new process, in alternating rounds."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CANDIDATES}
    for number in range(rounds):
        for name in CANDIDATES:
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.darcy_cpu", name], capture_output=True, check=True
            )
            runs[name].append(json.loads(child.stdout))
            figures = {key: round(value, 1) for key, value in runs[name][-1].items()}
            console.print(f"round {number + 1}  {name:9s}", figures)
    return runs


def medians(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Median of each figure over the rounds."""
    return {
        name: {key: statistics.median(round_[key] for round_ in rounds) for key in rounds[0]}
        for name, rounds in runs.items()
    }


def darcy_cpu(
    rounds: Annotated[int, typer.Option(min=1, help="new processes per candidate")] = 5,
    id: Annotated[str, typer.Option(help="id of the record")] = "bench/cpu/darcy",
    out: OutOption = None,
) -> None:
    """Time LinearNO on a CPU at the Darcy shape against the same network in plain PyTorch.

    Each measurement runs in a new process, alternating between the two, so that neither reuses the other's
    memory. Times are medians over rounds of the medians of a process; memory is the growth of the resident
    set during one forward pass.

    Example:

      python -m benchmarks darcy-cpu --rounds 5 --out results
    """
    difference = largest_difference()
    runs = run_rounds(rounds)
    result = medians(runs)
    ours, plain = (result[name] for name in CANDIDATES)
    ratios = {key: plain[key] / ours[key] for key in ours}
    for key in ours:
        row = f"{key:18s} linearno {ours[key]:7.1f}   plain {plain[key]:7.1f}   ratio {ratios[key]:.2f}"
        console.print(row, highlight=False)
    details = {
        "shape": {"batch": 1, "points": 7225} | SHAPE,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "largest_relative_difference": difference,
        "median": result,
        "runs": runs,
        "write_up_over_linearno": ratios,
    }
    against = {"plain write-up": plain["inference_ms"]}
    keep_record(new_record(id, ours["inference_ms"], "ms", against=against, details=details), out)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
