"""Compare the test errors of two training precisions."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.shared import OutOption, SetOption, keep_record
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.config import override
from linearno.core.device import resolve_device
from linearno.experiment import run
from linearno.recipes import RECIPES
from linearno.reproduce.run_records import record_of_precisions


def precision(
    recipe: Annotated[str, typer.Argument(help="name of a recipe", autocompletion=lambda: list(RECIPES))],
    epochs: Annotated[int, typer.Option(min=1, help="epochs of each run")] = 100,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="seed; may be repeated; 0 and 1 by default")
    ] = None,
    precisions: Annotated[
        list[str] | None,
        typer.Option("--precision", help="give two: the record compares the first with the second"),
    ] = None,
    set_: SetOption = None,
    runs: Annotated[Path, typer.Option(help="folder of the runs")] = Path("runs/precision"),
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Train a recipe with a short schedule in two precisions, bf16 and tf32 by default, and compare errors.

    The same command resumes stopped runs and only reads finished runs.

    Example:

      python -m benchmarks precision darcy/linearno --epochs 100 --out results
    """
    with user_errors():
        first, second = precisions or ["bf16", "tf32"]
        folders = []
        for seed in seeds or [0, 1]:
            for each in (first, second):
                short = [f"training.epochs={epochs}", f"training.precision={each}", f"seed={seed}"]
                config = override(RECIPES[recipe](), [*(set_ or []), *short])
                folders.append(runs / f"{recipe.replace('/', '-')}-{each}-{seed}")
                metrics = run(config, folders[-1], resolve_device(device))
                console.print(f"{each}, seed {seed}: {metrics[metrics['metric']]['mean']:.5f}")
        record = record_of_precisions(folders)
        console.print(f"error of {first} / error of {second}: {record.value:.3f}")
        keep_record(record, out)
