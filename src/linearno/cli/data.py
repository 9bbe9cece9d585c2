"""`linearno data`: list the benchmarks; generate, verify, export, pack and unpack their data."""

from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Annotated

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.table import Column, Table

from linearno.cli.shared import ImportOption, console, progress_bar, user_errors
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark, compress
from linearno.data.availability import describe_available, how_to_generate
from linearno.data.benchmark import Generate
from linearno.data.generation.card import CARD, Card, array_name, open_array, read_card
from linearno.data.generation.plan import Plan, read_progress
from linearno.models import import_definitions
from linearno.reproduce.dask_client import solver_on

MAX_LISTED_SAMPLES = 5

import_module("linearno.meshes.example_cases")  # registers the benchmark "cases"

app = typer.Typer(help="List, generate and check the data of the benchmarks.", no_args_is_help=True)


def _benchmark_names() -> list[str]:
    return list(DATASETS)


Name = Annotated[
    str, typer.Argument(help="benchmark, see `linearno data list`", autocompletion=_benchmark_names)
]
Train = Annotated[int | None, typer.Option(min=1, help="training samples; as in the protocol by default")]
Test = Annotated[int | None, typer.Option(min=1, help="test samples; as in the protocol by default")]
Val = Annotated[int | None, typer.Option(min=1, help="validation samples, if the protocol has them")]
Resolution = Annotated[
    int | None, typer.Option(min=1, help="points per side of the solver; as published by default")
]
Scheme = Annotated[
    str | None,
    typer.Option(
        help="scheme; ns: rk4, euler; plasticity: plain, fine; airfrans: sst, sa; shapenet-car: half, full"
    ),
]
Full = Annotated[bool, typer.Option("--full", help="generate all samples of the protocol, also on a CPU")]
Seed = Annotated[int, typer.Option(min=0, help="random seed of the samples")]
Out = Annotated[
    Path | None, typer.Option(help="output folder; the default folder of the benchmark if omitted")
]
Root = Annotated[
    Path | None, typer.Option(help="data folder; the default folder of the benchmark if omitted")
]
Workers = Annotated[int | None, typer.Option(min=1, help="processes on a CPU; one per core by default")]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler, such as tcp://host:8786")
]
Device = Annotated[
    str,
    typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …; auto: CUDA if available and supported"),
]


@app.command("list")
def list_(imports: ImportOption = None) -> None:
    """List the benchmarks, the data that are present, and how to get missing data.

    Example:

      linearno data list
      linearno data list --import my_benchmark.py
    """
    with user_errors():
        import_definitions(imports or [])
        heads = ("description", "folder", "present", "how to get it")
        columns = (Column(head, overflow="fold") for head in heads)  # file names are not cut
        table = Table(Column("name", no_wrap=True), *columns, box=None, pad_edge=False)
        for name in DATASETS:
            benchmark = DATASETS[name]
            root = benchmark.config.make({}).root
            present = describe_available(name, root, benchmark.published) or "nothing"
            source = _how_to_get(name, benchmark, root)
            table.add_row(name, benchmark.summary, str(root), escape(present), source)
        console.print(table)


def _how_to_get(name: str, benchmark: Benchmark, root: Path) -> str:
    """The command that generates the data, and names of published files."""
    ways = []
    if benchmark.generate:
        ways.append(f"linearno data generate {name} {_generate_options(benchmark, root)}")
    if benchmark.published:
        ways.append(f"or the published {', '.join(benchmark.published)}")
    return " ".join(ways)


def _generate_options(benchmark: Benchmark, root: Path) -> str:
    """Options of `generate` that resume the set in `root`, or generate all samples.

    If `root` contains a complete smaller set, they write to another folder.
    """
    other_folder = f"--full --out {root}-full"
    try:
        progress = read_progress(root)
    except UserError:
        return other_folder
    if progress is None:
        return "--full"
    plan = progress.plan.model_dump(exclude={"sizes"}, exclude_none=True)
    same_plan = " ".join(f"--{name} {value}" for name, value in plan.items())
    if not (root / CARD).exists():
        return same_plan + (" --device cpu" if progress.device == "cpu" and _on_gpu("auto") else "")
    sizes = benchmark.config.make({}).sizes
    is_full = (progress.plan.sizes, progress.plan.resolution) == (sizes, benchmark.resolution)
    return f"--full {same_plan}" if is_full else other_folder


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
    imports: ImportOption = None,
    scheduler: Scheduler = None,
) -> None:
    """Generate the data of a benchmark with its solver.

    Stop with Ctrl-C at any time: the same command resumes. Each sample has its own random numbers, so samples
    do not depend on the number of workers, and a larger set starts with the samples of a smaller one.

    --scheduler spreads the samples over the workers of a Dask cluster, which must see the folder under the
    same path.

    A GPU solves many samples at once. Random inputs are the same on every device, solutions agree to
    rounding; the card of the set records the device.

    Default sizes: those of a set that the folder already contains; else those of the protocol, except that a
    CPU generates a small set of benchmarks which would take hours. --full generates all samples.

    Examples:

      linearno data generate darcy
      linearno data generate darcy --device cuda
      linearno data generate darcy --train 100 --test 20 --out data/darcy-small
    """
    with user_errors():
        import_definitions(imports or [])
        benchmark = DATASETS[name]
        defaults = benchmark.config.make({})
        requested = {split: n for split, n in (("train", train), ("test", test), ("val", val)) if n}
        if extra := requested.keys() - defaults.sizes.keys():
            raise UserError(f"{name} has no split {extra.pop()!r}; it has {', '.join(defaults.sizes)}")
        points = resolution or benchmark.resolution
        if points is None:
            raise UserError(f"{name} has no default resolution; give one with --resolution")
        root, sizes, note = out or defaults.root, defaults.sizes | requested, ""
        if not full and not requested:
            sizes, note = _default_sizes(benchmark, root, sizes, on_gpu=_on_gpu(device))
        plan = Plan.make({"seed": seed, "resolution": points, "sizes": sizes, "scheme": scheme})
        where = root.resolve() if scheduler else root  # workers have other working directories
        with solver_on(scheduler, benchmark) as (solve, count):
            _generate(name, solve, where, plan, workers=workers or count, device=device, note=note)


def _default_sizes(
    benchmark: Benchmark, root: Path, all_sizes: dict[str, int], *, on_gpu: bool
) -> tuple[dict[str, int], str]:
    """Default sizes (of the set in `root`, else small ones on a CPU), and a note if they are not all."""
    total = f"{sum(all_sizes.values()):,}"
    if (progress := read_progress(root)) is not None:
        sizes = progress.plan.model_dump()["sizes"]
        note = f"sizes as in {root}; for all {total} samples: --full with another --out"
        return sizes, "" if sizes == all_sizes else note
    if on_gpu or not benchmark.small:
        return all_sizes, ""
    small = all_sizes | benchmark.small
    return small, f"{sum(small.values())} of {total} samples; for all: --full, or --device cuda on a GPU"


def _on_gpu(device: str) -> bool:
    """Whether `device` means a GPU on this machine."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _generate(
    name: str, solve: Generate | None, root: Path, plan: Plan, *, workers: int, device: str, note: str
) -> None:
    if solve is None:
        raise UserError(f"{name} has no solver; download its published files into {root} instead")
    began, done = monotonic(), 0
    try:
        with progress_bar(f"{name} → {root}", len(plan.jobs)) as advance:

            def tick(count: int) -> None:
                nonlocal done
                if note and not done:  # after the first sample, so that an early error is not preceded by it
                    typer.echo(f"{name}: {note}", err=True)
                done += count
                advance(count)

            settings = plan.model_dump()  # seed, resolution, sizes, scheme
            solve(root, **settings, workers=workers, tick=tick, device=device)
    except KeyboardInterrupt:
        typer.echo(f"stopped; {done} new samples are saved, and the same command resumes", err=True)
        raise typer.Exit(130) from None
    when = f"generated in {monotonic() - began:.1f} s" if done else "already complete, nothing to do"
    card = read_card(root, how="generate the set again")
    typer.echo(f"{root}: {plan}; {when} (solved on {card.device})")
    if redrawn := _redrawn_samples(root, card):
        typer.echo(f"samples redrawn because a solve failed: {redrawn}")
    if note and not done:
        typer.echo(f"{name}: {note}", err=True)


def _redrawn_samples(root: Path, card: Card) -> str:
    """List the samples whose first random draw could not be solved, by split."""
    found = []
    for split in card.sizes:
        if (name := array_name(split, "draws")) in card.files:
            draws = open_array(root / name, how="generate the set again")
            redrawn = np.flatnonzero(draws > 1).tolist()
            listed, more = redrawn[:MAX_LISTED_SAMPLES], len(redrawn) - MAX_LISTED_SAMPLES
            rest = f" and {more} more" if more > 0 else ""
            if redrawn:
                found.append(f"{split} {', '.join(map(str, listed))}{rest}")
    return "; ".join(found)


@app.command()
def verify(name: Name, root: Root = None, imports: ImportOption = None) -> None:
    """Check that the files of a benchmark are complete, have the right shapes, are finite and unchanged.

    Example:

      linearno data verify darcy --root data/darcy-small
    """
    with user_errors():
        import_definitions(imports or [])
        benchmark = DATASETS[name]
        folder = root or benchmark.config.make({}).root
        problems = benchmark.verify(folder)
        if problems:
            for line in problems:
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(2)
        typer.echo(f"{folder}: no problems found")


@app.command()
def export(
    name: Name,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to create the files in")],
    root: Root = None,
) -> None:
    """Write a generated set in the layout of the published files, for other programs.

    Example:

      linearno data export shapenet-car --out mlcfd_data/training_data
    """
    with user_errors():
        benchmark = DATASETS[name]
        if benchmark.export is None:
            able = ", ".join(other for other in DATASETS if DATASETS[other].export)
            raise UserError(f"{name} is not written in its published layout; {able} is")
        folder = root or benchmark.config.make({}).root
        total = sum(read_card(folder, how=how_to_generate(name, folder)).sizes.values())
        with progress_bar(f"{name} → {out}", total) as advance:
            count = benchmark.export(folder, out, advance)
        typer.echo(f"{out}: {count} samples")


@app.command()
def pack(
    name: Name,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; NAME.pack by default")
    ] = None,
    root: Root = None,
    imports: ImportOption = None,
) -> None:
    """Compress a generated set into one file, to copy it to another machine.

    Inputs are stored exactly. Outputs are rounded with an error below 1e-5 of their range; the card of the
    unpacked set records it.

    Examples:

      linearno data pack darcy -o darcy.pack
      linearno data unpack darcy.pack             # on the other machine
    """
    with user_errors():
        import_definitions(imports or [])
        benchmark = DATASETS[name]
        folder, path = root or benchmark.config.make({}).root, out or Path(f"{name}.pack")
        errors = compress.pack(
            name,
            folder,
            path,
            rounded=benchmark.outputs,
            channels=benchmark.channels,
            how=how_to_generate(name, folder),
        )
        rounded = "".join(f"; {file} to ±{error:.2g}" for file, error in errors.items())
        typer.echo(f"{path}: {path.stat().st_size / 1e6:.3g} MB{rounded}")


@app.command()
def unpack(
    path: Annotated[Path, typer.Argument(help="file written by `linearno data pack`")],
    out: Out = None,
) -> None:
    """Unpack a file of `linearno data pack` into a data folder.

    Example:

      linearno data unpack darcy.pack --out data/darcy
    """
    with user_errors():
        folder = out or Path("data") / path.stem
        card = compress.unpack(path, folder)
        typer.echo(f"{folder}: {card.name}, {', '.join(f'{split} {n}' for split, n in card.sizes.items())}")
