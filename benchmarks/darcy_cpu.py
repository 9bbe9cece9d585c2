"""LinearNO on a CPU at the Darcy shape, beside the same network in plain PyTorch."""

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
from benchmarks.timing import resident_mib
from linearno import LinearNO
from linearno.cli.shared import console
from linearno.reproduce.records import new_record

SHAPE: dict[str, Any] = {"width": 128, "depth": 8, "heads": 8, "slices": 64, "grid": (85, 85)}
CANDIDATES = ("linearno", "write-up")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "linearno":
        return LinearNO(coords=2, inputs=1, outputs=1, stem="conv", merge_layers=2, **SHAPE)
    return PlainLinearNO(features=3, **SHAPE)


def fields() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(1, 85 * 85, 2), torch.randn(1, 85 * 85, 1)


def measure(name: str) -> dict[str, float | None]:
    """Times (ms) and memory (MiB) of one candidate, in this process."""
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


def largest_difference() -> float:
    """Largest difference of the outputs with the same weights, relative to the largest value."""
    ours = build("linearno")
    with torch.inference_mode():
        first, second = (model(*fields()) for model in (ours, plain_twin(ours)))
    return ((first - second).abs().max() / second.abs().max()).item()


def compete(rounds: int) -> dict[str, list[dict[str, float]]]:
    """The figures of every round, the candidates in turn."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CANDIDATES}
    for turn in range(rounds):
        for name in CANDIDATES:
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.darcy_cpu", name], capture_output=True, check=True
            )
            runs[name].append(json.loads(child.stdout))
            figures = {key: round(value, 1) for key, value in runs[name][-1].items()}
            console.print(f"round {turn + 1}  {name:9s}", figures)
    return runs


def medians(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }


def darcy_cpu(
    rounds: Annotated[int, typer.Option(min=1, help="fresh processes of each")] = 5,
    id: Annotated[str, typer.Option(help="of the record")] = "bench/cpu/darcy",
    out: OutOption = None,
) -> None:
    """Time LinearNO on a CPU at the Darcy shape against the same network in plain PyTorch.

    Each measurement is a process of its own, LinearNO and the write-up in turn, so that neither inherits the
    other's memory. Times are medians over the rounds of the median of a process; memory is the growth of the
    resident set during one forward pass.

    Example:

      python -m benchmarks darcy-cpu --rounds 5 --out results
    """
    difference = largest_difference()
    runs = compete(rounds)
    result = medians(runs)
    ours, plain = (result[name] for name in CANDIDATES)
    ratios = {key: plain[key] / ours[key] for key in ours}
    for key in ours:
        row = f"{key:18s} linearno {ours[key]:7.1f}   write-up {plain[key]:7.1f}   ratio {ratios[key]:.2f}"
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
