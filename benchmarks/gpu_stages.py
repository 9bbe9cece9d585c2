"""Stages of a session on a GPU machine, in the order of their importance."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.weights import MAX_BYTES
from linearno.core.atomic_io import read_json
from linearno.inference.manifest import MANIFEST
from linearno.reproduce.cells import Selection
from linearno.reproduce.item_figures import suffices
from linearno.reproduce.items import ITEMS, cells_of
from linearno.reproduce.plan import pending, stored_records
from linearno.run_config import recipe
from linearno.run_folder import open_run

LINEARNO, BENCHMARKS, PYTEST = ([sys.executable, "-m", name] for name in ("linearno", "benchmarks", "pytest"))
TOY = ("model.width=8", "model.heads=2", "model.depth=1", "training.precision=fp32", "training.batch=2")
TOY_SAMPLES = (6, 3)
PUBLISHED_MODELS = ("linearno", "transolver")


@dataclass(frozen=True)
class Setup:
    """What the stages run on.

    Args:
        out: folder of records, runs, weights and the pack.
        device: "cuda", "cpu", …
        toy: tiny sets and models, to try the command on a CPU.
    """

    out: Path
    device: str
    toy: bool

    @property
    def records(self) -> Path:
        return self.out / "records"

    @property
    def runs(self) -> Path:
        return self.out / "reproduce" / "runs"

    @property
    def weights(self) -> Path:
        return self.out / "weights"


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: in the state of the session.
        command: its words.
        minutes_option: whether the command takes `--minutes`, and stops by itself.
        is_done: whether there is nothing to do; by default, whether the step has ended without error.
        environment: further environment variables.
    """

    name: str
    command: tuple[str, ...]
    minutes_option: bool = False
    is_done: Callable[[], bool] | None = None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stage:
    """Commands with a common time limit.

    Args:
        summary: what it measures.
        minutes: default limit.
        steps: its commands.
        absent: why it cannot run on this machine; None if it can.
    """

    summary: str
    minutes: float
    steps: Callable[[Setup], list[Step]]
    absent: Callable[[], str | None] = lambda: None


def _command(name: str, words: list[str], **more: str) -> Callable[[Setup], list[Step]]:
    def steps(setup: Setup) -> list[Step]:
        filled = [word.format(records=setup.records, device=setup.device) for word in words]
        return [Step(name, tuple(filled), environment=tuple(more.items()))]

    return steps


def _reproduce(
    name: str,
    item: str,
    *,
    benchmarks: str | None = None,
    models: str | None = None,
    epochs: int | None = None,
    seeds: int = 1,
) -> Callable[[Setup], list[Step]]:
    """`linearno reproduce ITEM`, which knows from its records what is left."""

    def steps(setup: Setup) -> list[Step]:
        columns, length = ("elasticity", 2) if setup.toy else (benchmarks, epochs)
        options = {"--benchmarks": columns, "--models": models, "--epochs": length, "--seeds": seeds}
        words = [word for option, value in options.items() if value for word in (option, str(value))]
        words += ["--out", str(setup.out / "reproduce"), "--records", str(setup.records)]
        words += ["--device", setup.device]
        if setup.toy:
            words += ["--samples", *map(str, TOY_SAMPLES), *(w for change in TOY for w in ("--set", change))]
        selection = Selection(
            models=tuple(models.split(",")) if models else None,
            benchmarks=tuple(columns.split(",")) if columns else None,
            epochs=length,
            seeds=tuple(range(seeds)),
            samples=TOY_SAMPLES if setup.toy else None,
            changes=TOY if setup.toy else (),
        )

        def is_done() -> bool:
            stored, enough = stored_records(setup.records), suffices(ITEMS[item], setup.out / "reproduce")
            return not pending(cells_of(item, selection), selection, stored, enough)

        command = (*LINEARNO, "reproduce", item, *words)
        return [Step(name, command, minutes_option=True, is_done=is_done)]

    return steps


def _outside_of_repository() -> str | None:
    here = Path("tests").is_dir() and Path("benchmarks/sanitize.sh").exists()
    return None if here else "it needs the root of the repository as working directory"


def _sanitizer_absent() -> str | None:
    return _outside_of_repository() or (
        None if shutil.which("compute-sanitizer") else "compute-sanitizer is not on PATH"
    )


ABLATED = "elasticity,darcy,airfoil"
HOURS = 240.0  # minutes: no limit of its own
STAGES = {
    "tests": Stage(
        "tests that need a GPU, without the slow ones",
        5.0,
        _command("tests", [*PYTEST, "-q", "-m", "gpu and not slow", "-p", "no:cacheprovider", "tests"]),
        _outside_of_repository,
    ),
    "step-check": Stage(
        "step times against reference times", 2.0, _command("step-check", [*BENCHMARKS, "step-check"])
    ),
    "sanitizer": Stage(
        "memory errors and races in the step of Elasticity",
        6.0,
        _command("sanitizer", ["sh", "benchmarks/sanitize.sh", "step"], PYTHON=sys.executable),
        _sanitizer_absent,
    ),
    "model-steps": Stage(
        "step times of every model",
        5.0,
        _command(
            "model-steps",
            [*BENCHMARKS, "model-steps", "--no-compile", "--device", "{device}", "--out", "{records}"],
        ),
    ),
    "table4": Stage(
        "Table 4 at 100 epochs", HOURS, _reproduce("table4", "table4", benchmarks=ABLATED, epochs=100)
    ),
    "table6": Stage(
        "Table 6 at 100 epochs", HOURS, _reproduce("table6", "table6", benchmarks=ABLATED, epochs=100)
    ),
    "table5": Stage(
        "Table 5 at 100 epochs", HOURS, _reproduce("table5", "table5", benchmarks=ABLATED, epochs=100)
    ),
    "table1": Stage("Table 1 at 50 epochs", HOURS, _reproduce("table1", "table1", epochs=50)),
    "seeds": Stage(
        "LinearNO and Transolver with three seeds at the full schedule",
        HOURS,
        _reproduce("seeds", "table1", benchmarks=ABLATED, models="linearno,transolver", seeds=3),
    ),
    "ns": Stage(
        "LinearNO and Transolver on Navier-Stokes at the full schedule",
        HOURS,
        _reproduce("ns", "table1", benchmarks="ns", models="linearno,transolver"),
    ),
}


def weight_steps(setup: Setup) -> list[Step]:
    """Publish the best finished run of LinearNO and Transolver on each benchmark, if it is new."""
    best: dict[str, tuple[float, Path, str]] = {}
    for folder in sorted(setup.runs.glob("*")):
        if not (folder / "metrics.json").exists():
            continue
        config = open_run(folder)
        benchmark, _, model = config.recipe.partition("/")
        too_large = (folder / "model.safetensors").stat().st_size > 2 * MAX_BYTES
        if too_large or model not in PUBLISHED_MODELS:
            continue
        if config.model != recipe(benchmark, model).model and not setup.toy:
            continue  # a row of an ablation
        metrics = read_json(folder / "metrics.json", how="remove the folder")
        error = metrics[metrics["metric"]]["mean"]
        name = benchmark if model == "linearno" else f"{benchmark}-{model}"
        if name not in best or error < best[name][0]:
            note = f"{config.training.epochs} epochs, seed {config.seed}"
            best[name] = (error, folder, note + (", toy sizes" if setup.toy else ""))
    manifest = setup.weights / MANIFEST
    stated = read_json(manifest, how="remove it") if manifest.exists() else {}
    options = ("--out", str(setup.weights), "--device", setup.device)
    return [
        Step(
            f"weights {name} {folder.name}",
            (*BENCHMARKS, "weights", str(folder), name, "--note", note, *options),
        )
        for name, (error, folder, note) in best.items()
        if name not in stated or error < 0.999 * stated[name]["error_unrounded"]
    ]
