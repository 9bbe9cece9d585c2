"""Compare training step times on a GPU with reference times."""

from typing import Annotated

import torch
import typer

from benchmarks.cli.bench import Arithmetic, named_precision, step_case
from benchmarks.step import our_step
from benchmarks.timing import Candidate, Timing, TimingSettings, time_candidates
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.device import Precision, device_name, resolve_device, set_matmul_precision
from linearno.core.errors import UserError

REFERENCE_MS = {"darcy": 2.41, "airfoil": 3.6, "elasticity": 0.49, "ns": 8.2}  # bf16, captured, one H200
MAX_RATIO = 1.03


def step_check(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="benchmark; may be repeated; darcy, airfoil, elasticity and ns by default"),
    ] = None,
    precision: Annotated[Arithmetic, typer.Option(help="precision of matrix products")] = Arithmetic.bf16,
    repeats: Annotated[int | None, typer.Option(min=1, help="timed calls in each of five rounds")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Time the training steps of four benchmarks on a GPU and compare them with times on an H200.

    The exit status is 1 if a step takes more than 1.03 times its reference.

    Example:

      python -m benchmarks step-check --shape darcy --shape ns
    """
    with user_errors():
        where = resolve_device(device)
        defaults = TimingSettings.default(where)
        settings = TimingSettings(defaults.warmup, defaults.rounds, repeats or defaults.repeats)
        console.print(f"on {device_name(where)}, {precision}")
        console.print(f"{'step':<12}{'ms':>9}{'quartiles':>20}{'reference':>11}{'ratio':>8}")
        slow = False
        for name in shape or REFERENCE_MS:
            if name not in REFERENCE_MS:
                raise UserError(f"no reference time of {name!r}; choose one of {', '.join(REFERENCE_MS)}")
            timing = time_step(name, where, named_precision(precision), settings)
            ratio = timing.median / REFERENCE_MS[name]
            flag = f"  > {MAX_RATIO}" if ratio > MAX_RATIO else ""
            quartiles = f"{timing.low:.3f} to {timing.high:.3f}"
            reference = REFERENCE_MS[name]
            console.print(
                f"{name:<12}{timing.median:>9.3f}{quartiles:>20}{reference:>11.2f}{ratio:>8.3f}{flag}"
            )
            slow |= bool(flag)
        if slow:
            raise typer.Exit(1)


def time_step(shape: str, device: torch.device, precision: Precision, settings: TimingSettings) -> Timing:
    """Time one step as `fit` runs it, captured as a CUDA graph."""

    def build() -> Candidate:
        set_matmul_precision(precision)
        return Candidate(our_step(step_case(shape), device, precision), precision, replay=True)

    return time_candidates({shape: build}, device, settings, required=shape).times[shape]
