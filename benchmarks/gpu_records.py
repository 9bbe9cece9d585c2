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
GENERATED = {
    "airfoil": [],
    "ns": [],
    "plasticity": ["--train", "907", "--scheme", "fine"],
}  # 987 with the test's
TRAINED = {
    "burgers1/linearno": ["training.epochs=100"],
    "burgers20/linearno": [],
    "darcy/linearno": [],
    "darcy/transolver": [],
    "elasticity/linearno": [],
    "elasticity/transolver": [],
    "pipe/linearno": [],
    "airfoil/linearno": [],
    "ns/linearno": ["training.epochs=100"],
    "ns/transolver": ["training.epochs=100", "training.clip=1", "seed=1"],  # unclipped, its loss collapses
    "plasticity/linearno": ["training.epochs=108"],
    "plasticity/linearno-mended": ["training.epochs=108", "data.coords=aligned", "data.die=aligned"],
}
RECIPES = {"plasticity/linearno-mended": "plasticity/linearno"}  # of records with another name
STEPS = ("airfoil", "darcy", "elasticity", "million", "ns", "pipe")
COMPILED_SHAPE = "darcy"  # also timed beside torch.compile, which takes minutes
KNOWN = (
    [f"generate/{name}" for name in GENERATED]
    + [f"train/{recipe}" for recipe in TRAINED]
    + [f"bench/step/{shape}" for shape in STEPS]
)


def gpu_records(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            help="ids, in the order of measurement; none: list them", autocompletion=lambda: KNOWN
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="stop after this time")] = float("inf"),
    out: Annotated[Path, typer.Option(help="folder of the records; existing ones are kept")] = Path(
        "results"
    ),
) -> None:
    """Measure records that need a GPU, one after another; the same command resumes.

    A training generates its data first if they are absent; data lie in data/, runs in runs/. A set whose time
    is recorded is generated in one piece, into an empty folder.

    Examples:

      python -m benchmarks gpu-records
      python -m benchmarks gpu-records train/ns/transolver --out mine
    """
    with user_errors():
        if unknown := [record for record in records or [] if record not in KNOWN]:
            raise UserError(f"unknown record {unknown[0]}; {did_you_mean(unknown[0], KNOWN)}")
        if not records:
            typer.echo("\n".join(KNOWN))
        until = time.monotonic() + seconds
        for record in records or []:
            if (out / f"{record}.json").exists():
                typer.echo(f"{record}: exists")
                continue
            for command in commands_of(record, out):
                typer.echo(f"{record}: {' '.join(command[1:])}")
                if code := run(command, until):
                    raise typer.Exit(code)


def commands_of(record: str, out: Path) -> list[list[str]]:
    kind, name = record.split("/", 1)
    if kind == "generate":
        options = ["--device", "cuda", "--keep", f"data/{name}", "--id", record, "--out", str(out)]
        return [[*BENCHMARKS, "generation", name, *GENERATED[name], *options]]
    if kind == "bench":
        shape = name.split("/")[-1]
        options = [] if shape == COMPILED_SHAPE else ["--no-compile"]
        return [[*BENCHMARKS, "step", "--shape", shape, *options, "--out", str(out)]]
    data = name.split("/")[0].rstrip("0123456789")
    changes = [word for change in TRAINED[name] for word in ("--set", change)]
    run = ["--run", f"runs/{name.replace('/', '-')}", "--out", str(out)]
    make = [*LINEARNO, "data", "generate", data, "--full", *GENERATED.get(data, [])]
    train = [*BENCHMARKS, "train", RECIPES.get(name, name), *changes, "--id", record, *run]
    return [train] if Path("data", data, "card.json").exists() else [make, train]


def run(command: list[str], until: float) -> int:
    """Run a command and return its exit code; after `until` it is stopped, which keeps its results."""
    child = subprocess.Popen(command)
    try:
        left = until - time.monotonic()
        return child.wait(None if left == float("inf") else max(left, 0))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        child.wait()
        return EXIT_OUT_OF_TIME
    except KeyboardInterrupt:
        child.wait()  # the terminal interrupts it too
        return 130
