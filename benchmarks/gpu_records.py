"""Records that need a GPU, measured one after another."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import user_errors
from linearno.core.errors import UserError, did_you_mean

LINEARNO, BENCHMARKS = ([sys.executable, "-m", name] for name in ("linearno", "benchmarks"))
EXIT_OUT_OF_TIME = 75
GENERATION_OPTIONS = {
    "airfoil": [],
    "ns": [],
    "plasticity": ["--train", "907", "--scheme", "fine"],  # 987 samples with the test split
    "shapenet-car": [],
}
TRAINING_CHANGES = {  # recipe or record name: changed settings
    "burgers1/linearno": ["training.epochs=100"],
    "burgers20/linearno": [],
    "darcy/linearno": [],
    "darcy/transolver": [],
    "elasticity/linearno": [],
    "elasticity/transolver": [],
    "pipe/linearno": [],
    "airfoil/linearno": [],
    "ns/linearno": ["training.epochs=100"],
    "ns/transolver": ["training.epochs=100", "training.clip=1", "seed=1"],  # diverges without clipping
    "plasticity/linearno": ["training.epochs=108"],
    "shapenet-car/linearno": ["training.epochs=100"],
    "shapenet-car/transolver": ["training.epochs=100"],
    "plasticity/linearno-mended": ["training.epochs=108", "data.coords=aligned", "data.die=aligned"],
}
RECIPE_OF_RECORD = {"plasticity/linearno-mended": "plasticity/linearno"}  # if the names differ
STEP_SHAPES = ("airfoil", "darcy", "elasticity", "million", "ns", "pipe")
COMPILED_SHAPE = "darcy"  # only shape timed with torch.compile, which takes minutes
RECORD_IDS = (
    [f"generate/{name}" for name in GENERATION_OPTIONS]
    + [f"train/{recipe}" for recipe in TRAINING_CHANGES]
    + [f"bench/step/{shape}" for shape in STEP_SHAPES]
    + ["bench/lbm"]
)


def gpu_records(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            help="ids in the order of measurement; without ids, list all", autocompletion=lambda: RECORD_IDS
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="stop after this many seconds")] = float("inf"),
    out: Annotated[Path, typer.Option(help="folder of the records; existing records are kept")] = Path(
        "results"
    ),
) -> None:
    """Measure records that need a GPU, one after another; the same command resumes.

    Training generates missing data first, in data/; runs are in runs/. A set whose generation is timed needs
    an empty folder.

    Examples:

      python -m benchmarks gpu-records
      python -m benchmarks gpu-records train/ns/transolver --out mine
    """
    with user_errors():
        if unknown := [record for record in records or [] if record not in RECORD_IDS]:
            raise UserError(f"unknown record {unknown[0]}; {did_you_mean(unknown[0], RECORD_IDS)}")
        if not records:
            typer.echo("\n".join(RECORD_IDS))
        deadline = time.monotonic() + seconds
        for record in records or []:
            if (out / f"{record}.json").exists():
                typer.echo(f"{record}: exists")
                continue
            for command in commands_of(record, out):
                typer.echo(f"{record}: {' '.join(command[1:])}")
                if code := run(command, deadline):
                    raise typer.Exit(code)


def commands_of(record: str, out: Path) -> list[list[str]]:
    """Command lines that measure a record."""
    kind, name = record.split("/", 1)
    if kind == "generate":
        options = ["--device", "cuda", "--keep", f"data/{name}", "--id", record, "--out", str(out)]
        return [[*BENCHMARKS, "generation", name, *GENERATION_OPTIONS[name], *options]]
    if record == "bench/lbm":
        return [[*BENCHMARKS, "lattice-speed", "--device", "cuda", "--out", str(out)]]
    if kind == "bench":
        shape = name.split("/")[-1]
        options = [] if shape == COMPILED_SHAPE else ["--no-compile"]
        return [[*BENCHMARKS, "step", "--shape", shape, *options, "--out", str(out)]]
    data = name.split("/")[0].rstrip("0123456789")
    changes = [option for change in TRAINING_CHANGES[name] for option in ("--set", change)]
    run = ["--run", f"runs/{name.replace('/', '-')}", "--out", str(out)]
    generate = [*LINEARNO, "data", "generate", data, "--full", *GENERATION_OPTIONS.get(data, [])]
    train = [*BENCHMARKS, "train", RECIPE_OF_RECORD.get(name, name), *changes, "--id", record, *run]
    return [train] if Path("data", data, "card.json").exists() else [generate, train]


def run(command: list[str], deadline: float) -> int:
    """Run a command and return its exit code; at the deadline, send SIGTERM, which keeps its results."""
    child = subprocess.Popen(command)
    try:
        remaining = deadline - time.monotonic()
        return child.wait(None if remaining == float("inf") else max(remaining, 0))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        child.wait()
        return EXIT_OUT_OF_TIME
    except KeyboardInterrupt:
        child.wait()  # the terminal sends SIGINT to the child too
        return 130
