"""`linearno data`: which benchmarks there are, make their files, check them."""

import os
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.table import Table

from linearno.cli.shared import console, progress_bar, user_errors
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark
from linearno.data.card import read_card
from linearno.data.generate import Plan

app = typer.Typer(help="List, make and check the data of the benchmarks.", no_args_is_help=True)


def _names() -> list[str]:
    return list(DATASETS)


Name = Annotated[str, typer.Argument(help="as `linearno data list` names it", autocompletion=_names)]
Train = Annotated[int | None, typer.Option(min=1, help="samples to train on; the protocol's by default")]
Test = Annotated[int | None, typer.Option(min=1, help="samples to test on; the protocol's by default")]
Val = Annotated[int | None, typer.Option(min=1, help="samples to validate on, where the protocol has them")]
Resolution = Annotated[
    int | None, typer.Option(min=1, help="the solver's points a side; as published by default")
]
Scheme = Annotated[str | None, typer.Option(help="of a solver that has several; its usual one by default")]
Seed = Annotated[int, typer.Option(min=0, help="the same seed gives the same samples")]
Out = Annotated[Path | None, typer.Option(help="folder to fill; the benchmark's own by default")]
Root = Annotated[Path | None, typer.Option(help="folder to check; the benchmark's own by default")]
Workers = Annotated[int | None, typer.Option(min=1, help="processes on a CPU; one for each core by default")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:1, …; auto is CUDA where it is and the solver can use it")
]


@app.command("list")
def list_() -> None:
    """Name the benchmarks, and say where each is looked for.

    Example:  linearno data list
    """
    table = Table("name", "what it is", "default folder", "solver", box=None, pad_edge=False)
    for name in DATASETS:
        benchmark = DATASETS[name]
        root = benchmark.config.make({}).root
        table.add_row(name, benchmark.summary, str(root), "yes" if benchmark.generate else "no")
    console.print(table)


@app.command()
def generate(
    name: Name,
    train: Train = None,
    test: Test = None,
    val: Val = None,
    resolution: Resolution = None,
    seed: Seed = 0,
    out: Out = None,
    workers: Workers = None,
    device: Device = "auto",
    scheme: Scheme = None,
) -> None:
    """Make a benchmark's files with its solver.

    Stop it whenever you like: the same command goes on where it stopped.
    Each sample has its own random numbers: the number of workers changes
    nothing, and a larger set begins with the samples of a smaller one.

    A GPU solves many samples at once. Random inputs are the same on every
    device, solutions to rounding; the card of the set says which one it was.

    Example:  linearno data generate darcy

    On a GPU:
    linearno data generate darcy --device cuda

    A small set:
    linearno data generate darcy --train 100 --test 20 --resolution 85 --out data/small
    """
    with user_errors():
        benchmark = DATASETS[name]
        usual = benchmark.config.make({})
        asked = {"train": train, "test": test, "val": val}
        sizes = usual.sizes | {split: count for split, count in asked.items() if count}
        if extra := sizes.keys() - usual.sizes.keys():
            raise UserError(f"{name} has no split {extra.pop()!r}; it has {', '.join(usual.sizes)}")
        points = resolution or benchmark.resolution
        if points is None:
            raise UserError(f"{name} has no usual resolution; give one with --resolution")
        plan = Plan.make({"seed": seed, "resolution": points, "sizes": sizes, "scheme": scheme})
        _generate(name, benchmark, out or usual.root, plan, workers=workers or _cores(), device=device)


def _generate(name: str, benchmark: Benchmark, root: Path, plan: Plan, *, workers: int, device: str) -> None:
    if benchmark.generate is None:
        raise UserError(f"{name} has no solver here; put its published files into a folder instead")
    began, made = monotonic(), 0
    try:
        with progress_bar(f"{name} → {root}", len(plan.jobs)) as advance:

            def tick(count: int) -> None:
                nonlocal made
                made += count
                advance(count)

            settings = plan.model_dump()  # seed, resolution, sizes, scheme
            benchmark.generate(root, **settings, workers=workers, tick=tick, device=device)
    except KeyboardInterrupt:
        typer.echo(f"stopped; {made} samples are kept and the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    when = f"made in {monotonic() - began:.1f} s" if made else "already there, nothing to do"
    maker = read_card(root, how="generate the set again").device
    typer.echo(f"{root}: {plan}; {when} (solved on {maker})")


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@app.command()
def verify(name: Name, root: Root = None) -> None:
    """Check a benchmark's files: all there, right shapes, finite, unchanged.

    Example:  linearno data verify darcy --root data/small
    """
    with user_errors():
        benchmark = DATASETS[name]
        folder = root or benchmark.config.make({}).root
        problems = benchmark.verify(folder)
        if problems:
            for line in problems:
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(2)
        typer.echo(f"{folder}: all is well")
