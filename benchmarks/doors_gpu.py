"""Time the training steps of four benchmarks on a GPU and compare them with reference times on one H200.

python benchmarks/doors_gpu.py [--precision bf16] [--repeats 40] [--shape darcy --shape ns]

Exits with status 1 if a step takes more than 1.03 times its reference.
"""

import argparse
import sys

import torch

from linearno.bench.step import our_step
from linearno.bench.timing import Contestant, Effort, compete
from linearno.cli.bench import step_case
from linearno.core.device import device_name, resolve_device, set_matmul_precision

REFERENCE_MS = {"darcy": 2.41, "airfoil": 3.6, "elasticity": 0.49, "ns": 8.2}  # bf16, captured, one H200
MAX_RATIO = 1.03


def step_ms(shape: str, device: torch.device, precision: str, effort: Effort) -> tuple[float, float, float]:
    """Median and quartiles of one step as `fit` runs it, captured as a CUDA graph."""

    def build() -> Contestant:
        set_matmul_precision(precision)
        return Contestant(our_step(step_case(shape), device, precision), precision, replay=True)

    timing = compete({shape: build}, device, effort, required=shape).times[shape]
    return timing.median, timing.low, timing.high


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=list(REFERENCE_MS))
    parser.add_argument("--precision", default="bf16", choices=["bf16", "tf32", "fp32"])
    parser.add_argument("--repeats", type=int, help="timed calls in each of five rounds")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    usual = Effort.usual(device)
    effort = Effort(usual.warmup, usual.rounds, options.repeats or usual.repeats)
    print(f"on {device_name(device)}, {options.precision}")
    print(f"{'step':<12}{'ms':>9}{'quartiles':>20}{'reference':>11}{'ratio':>8}")
    slow = []
    for shape in options.shape or REFERENCE_MS:
        median, low, high = step_ms(shape, device, options.precision, effort)
        ratio = median / REFERENCE_MS[shape]
        flag = "  > 1.03" if ratio > MAX_RATIO else ""
        quartiles = f"{low:.3f} to {high:.3f}"
        print(f"{shape:<12}{median:>9.3f}{quartiles:>20}{REFERENCE_MS[shape]:>11.2f}{ratio:>8.3f}{flag}")
        slow += [shape] if flag else []
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
