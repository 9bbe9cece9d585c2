"""`linearno data`: which benchmarks there are, make their files, check them."""

import os
from pathlib import Path
from time import monotonic
from typing import Annotated

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.table import Column, Table

from linearno.cli.shared import console, progress_bar, user_errors
from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark
from linearno.data.availability import how_to_generate, present
from linearno.data.compress import pack as pack_set
from linearno.data.compress import unpack as unpack_set
from linearno.data.generation.card import CARD, Card, array_name, open_array, read_card
from linearno.data.generation.plan import Plan, read_progress

PATIENCE = 600.0  # seconds that a CPU may work without having been asked to
CORES = 2  # of that CPU, whichever is here: the same command asks for the same samples everywhere
FEW = 5  # samples to name one by one

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
Scheme = Annotated[
    str | None, typer.Option(help="of a solver that has several: ns rk4 or euler, plasticity plain or fine")
]
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
        heads = ("what it is", "folder", "here", "how to get it")
        folded = (Column(head, overflow="fold") for head in heads)  # no name of a file is cut
        table = Table(Column("name", no_wrap=True), *folded, box=None, pad_edge=False)
        for name in DATASETS:
            benchmark = DATASETS[name]
            root = benchmark.config.make({}).root
            here = present(name, root, benchmark.published) or "nothing"
            table.add_row(name, benchmark.summary, str(root), escape(here), _how(name, benchmark, root))
        console.print(table)


def _how(name: str, benchmark: Benchmark, root: Path) -> str:
    """By a command and its time, or by files of these names."""
    ways = []
    if benchmark.generate:
        options, seconds = _way(benchmark, root)
        took = format_duration(seconds / _cores())
        ways.append(f"linearno data generate {name} {options} (about {took} on {_cores()} cores)")
    if benchmark.published:
        ways.append(f"or the published {', '.join(benchmark.published)}")
    return " ".join(ways)


def _way(benchmark: Benchmark, root: Path) -> tuple[str, float]:
    """The options by which `generate` goes on in `root`, or makes all samples, in another folder where this
    one holds something else; and the seconds of a core for it."""
    sizes, points = benchmark.config.make({}).sizes, benchmark.resolution
    elsewhere, whole = f"--full --out {root}-full", _seconds(benchmark, points) * sum(sizes.values())
    try:
        there = read_progress(root)
    except UserError:
        return elsewhere, whole
    if there is None:
        return "--full", whole
    if not (root / CARD).exists():
        device = " --device cpu" if there.device == "cpu" and _on_gpu("auto") else ""
        left = len(there.plan.jobs) - there.done
        return _asks_for(there.plan) + device, _seconds(
            benchmark, there.plan.resolution, there.plan.scheme
        ) * left
    all_there = (there.plan.sizes, there.plan.resolution) == (sizes, points)
    return f"--full {_asks_for(there.plan)}" if all_there else elsewhere, whole


def _asks_for(plan: Plan) -> str:
    """The options of `generate` for this plan, but its sizes."""
    values = plan.model_dump(exclude={"sizes"}, exclude_none=True)
    return " ".join(f"--{name} {value}" for name, value in values.items())


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

    Where the protocol's whole set would take two cores longer than ten minutes, a
    small one is made unless you ask for --full or give sizes. Without either, the
    sizes of a set that is in the folder already are taken.

    Example:  linearno data generate darcy

    On a GPU:
    linearno data generate darcy --device cuda

    A small set:
    linearno data generate darcy --train 100 --test 20 --resolution 85 --out data/small
    """
    with user_errors():
        benchmark = DATASETS[name]
        usual = benchmark.config.make({})
        asked = {split: count for split, count in (("train", train), ("test", test), ("val", val)) if count}
        if extra := asked.keys() - usual.sizes.keys():
            raise UserError(f"{name} has no split {extra.pop()!r}; it has {', '.join(usual.sizes)}")
        points = resolution or benchmark.resolution
        if points is None:
            raise UserError(f"{name} has no usual resolution; give one with --resolution")
        root, at_once, sizes, note = out or usual.root, workers or _cores(), usual.sizes | asked, ""
        if not full and not asked:
            each = 0.0 if _on_gpu(device) else _seconds(benchmark, points, scheme)
            sizes, note = _as_begun(root, sizes) or _within_reach(each, sizes, at_once)
        plan = Plan.make({"seed": seed, "resolution": points, "sizes": sizes, "scheme": scheme})
        _generate(name, benchmark, root, plan, workers=at_once, device=device, note=note)


def _on_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _seconds(benchmark: Benchmark, points: int | None, scheme: str | None = None) -> float:
    """About, that a core needs to make a sample of that resolution by that scheme."""
    usual, each = benchmark.resolution, benchmark.seconds * (benchmark.slower or {}).get(scheme or "", 1)
    return each * (points / usual) ** benchmark.growth if points and usual else each


def _as_begun(root: Path, sizes: dict[str, int]) -> tuple[dict[str, int], str] | None:
    """The sizes of the set in `root`, finished or not, and a line where they are not the protocol's."""
    if (there := read_progress(root)) is None:
        return None
    found: dict[str, int] = there.plan.model_dump()["sizes"]
    total = sum(sizes.values())
    note = f"sizes as in {root}; for all {total:,} samples: --full with another --out"
    return found, "" if found == sizes else note


def _within_reach(each: float, sizes: dict[str, int], workers: int) -> tuple[dict[str, int], str]:
    """The sizes, or where two cores, `each` seconds a sample, would need too long a part of them, and a line
    that says so."""
    total = sum(sizes.values())
    whole = each * total / CORES
    if whole <= PATIENCE:
        return sizes, ""
    small = {split: max(2, round(PATIENCE / 2 / whole * count)) for split, count in sizes.items()}
    some = sum(small.values())
    return small, (
        f"all {total:,} samples would take about {format_duration(each * total / workers)} on {workers} "
        f"cores; making {some} in about {format_duration(each * some / workers)}. For all: --full, or "
        "--device cuda on a GPU"
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
    card = read_card(root, how="generate the set again")
    typer.echo(f"{root}: {plan}; {when} (solved on {card.device})")
    if again := _drawn_again(root, card):
        typer.echo(f"drawn again: {again}")
    if note and not made:
        typer.echo(f"{name}: {note}", err=True)


def _drawn_again(root: Path, card: Card) -> str:
    """The samples whose first draw could not be solved, in words; nothing where there are none."""
    found = []
    for split in card.sizes:
        if (name := array_name(split, "draws")) in card.files:
            draws = open_array(root / name, how="generate the set again")
            again = np.flatnonzero(draws > 1).tolist()
            rest = f" and {len(again) - FEW} more" if len(again) > FEW else ""
            if again:
                found.append(f"{split} {', '.join(map(str, again[:FEW]))}{rest}")
    return "; ".join(found)


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
            name,
            folder,
            path,
            rounded=benchmark.outputs,
            channels=benchmark.channels,
            how=how_to_generate(name, folder),
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
