"""`linearno data`: which benchmarks there are, make their files, check them."""

import os
from pathlib import Path
from time import monotonic
from typing import Annotated

import torch
import typer
from rich.table import Table

from linearno.cli.shared import console, progress_bar, user_errors, words_for
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark
from linearno.data.card import read_card
from linearno.data.generate import Plan
from linearno.data.pack import pack as pack_set
from linearno.data.pack import unpack as unpack_set
from linearno.data.sources import how_to_make, present

PATIENCE = 600.0  # seconds that a CPU may work without having been asked to

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
Full = Annotated[bool, typer.Option("--full", help="all samples of the protocol, however long it takes")]
Seed = Annotated[int, typer.Option(min=0, help="the same seed gives the same samples")]
Out = Annotated[Path | None, typer.Option(help="folder to fill; the benchmark's own by default")]
Root = Annotated[Path | None, typer.Option(help="folder to check; the benchmark's own by default")]
Workers = Annotated[int | None, typer.Option(min=1, help="processes on a CPU; one for each core by default")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:1, …; auto is CUDA where it is and the solver can use it")
]


@app.command("list")
def list_() -> None:
    """Name the benchmarks, say what of each is here, and how to get the rest.

    Example:  linearno data list
    """
    with user_errors():
        table = Table("name", "what it is", "folder", "here", "how to get it", box=None, pad_edge=False)
        for name in DATASETS:
            benchmark = DATASETS[name]
            usual = benchmark.config.make({})
            here = present(usual.root, benchmark.published)
            table.add_row(name, benchmark.summary, str(usual.root), here or "nothing", _how(name, benchmark))
        console.print(table)


def _how(name: str, benchmark: Benchmark) -> str:
    """By a command and its time, or by files of these names."""
    ways = []
    if benchmark.generate:
        samples = sum(benchmark.config.make({}).sizes.values())
        took = words_for(benchmark.seconds * samples / _cores())
        ways.append(f"linearno data generate {name} --full (about {took} on {_cores()} cores)")
    if benchmark.published:
        ways.append(f"or the published {', '.join(benchmark.published)}")
    return " ".join(ways)


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
    full: Full = False,
) -> None:
    """Make a benchmark's files with its solver.

    Stop it whenever you like: the same command goes on where it stopped.
    Each sample has its own random numbers: the number of workers changes
    nothing, and a larger set begins with the samples of a smaller one.

    A GPU solves many samples at once. Random inputs are the same on every
    device, solutions to rounding; the card of the set says which one it was.

    Where the protocol's whole set would take a CPU longer than ten minutes, a small
    one is made unless you ask for --full or give sizes.

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
        note = ""
        if not full and not any(asked.values()):
            sizes, note = _within_reach(benchmark, sizes, workers or _cores(), device)
        if extra := sizes.keys() - usual.sizes.keys():
            raise UserError(f"{name} has no split {extra.pop()!r}; it has {', '.join(usual.sizes)}")
        points = resolution or benchmark.resolution
        if points is None:
            raise UserError(f"{name} has no usual resolution; give one with --resolution")
        plan = Plan.make({"seed": seed, "resolution": points, "sizes": sizes, "scheme": scheme})
        _generate(
            name, benchmark, out or usual.root, plan, workers=workers or _cores(), device=device, note=note
        )


def _within_reach(
    benchmark: Benchmark, sizes: dict[str, int], workers: int, device: str
) -> tuple[dict[str, int], str]:
    """The sizes, or where a CPU would need too long a part of them, and a line that says so."""
    whole, total = benchmark.seconds * sum(sizes.values()) / workers, sum(sizes.values())
    gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if gpu or whole <= PATIENCE:
        return sizes, ""
    part = PATIENCE / 2 / whole
    small = {split: max(2, round(part * count)) for split, count in sizes.items()}
    return small, (
        f"all {total:,} samples would take about {words_for(whole)} on {workers} cores; making "
        f"{sum(small.values())} in about {words_for(part * whole)}. For all: --full, or --device cuda on "
        "a GPU"
    )


def _generate(
    name: str, benchmark: Benchmark, root: Path, plan: Plan, *, workers: int, device: str, note: str = ""
) -> None:
    if benchmark.generate is None:
        raise UserError(f"{name} has no solver here; put its published files into a folder instead")
    began, made = monotonic(), 0
    try:
        with progress_bar(f"{name} → {root}", len(plan.jobs)) as advance:

            def tick(count: int) -> None:
                nonlocal made
                if note and not made:  # the first sample shows that all is well
                    typer.echo(f"{name}: {note}", err=True)
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


@app.command()
def pack(
    name: Name,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the file; NAME.pack by default")] = None,
    root: Root = None,
) -> None:
    """Write a generated set as one small file, to be carried to another machine.

    Inputs stay as they are. Outputs are rounded to less than 1e-5 of their range, and the card of the set
    that comes out at the other end says so.

    Example:  linearno data pack darcy -o darcy.pack     and there:  linearno data unpack darcy.pack
    """
    with user_errors():
        benchmark = DATASETS[name]
        folder, path = root or benchmark.config.make({}).root, out or Path(f"{name}.pack")
        off = pack_set(
            folder,
            path,
            rounded=benchmark.outputs,
            channels=benchmark.channels,
            how=how_to_make(name, folder),
            benchmark=name,
        )
        rounded = "".join(f"; {file} to ±{error:.2g}" for file, error in off.items())
        typer.echo(f"{path}: {path.stat().st_size / 1e6:.3g} MB{rounded}")


@app.command()
def unpack(
    path: Annotated[Path, typer.Argument(help="what `linearno data pack` wrote")],
    out: Out = None,
) -> None:
    """Make the folder of a packed set.

    Example:  linearno data unpack darcy.pack --out data/darcy
    """
    with user_errors():
        folder = out or Path("data") / path.stem
        card = unpack_set(path, folder)
        typer.echo(f"{folder}: {card.name}, {', '.join(f'{split} {n}' for split, n in card.sizes.items())}")
