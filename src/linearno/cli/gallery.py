"""`linearno gallery`: train a small model on every benchmark and show all on one page."""

import os
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from linearno.cli.shared import DeviceOption, console, progress_bar, user_errors
from linearno.cli.train import exit_on_interrupt, run_with_bar
from linearno.core.atomic_io import folder_lock, read_json, writable_folder, write_json
from linearno.core.config import override
from linearno.core.device import resolve_device
from linearno.core.errors import UserError
from linearno.data import DATASETS, metric_title
from linearno.recipes.gallery import GALLERY, ROOT
from linearno.report import GalleryCard, write_gallery, write_report, write_strips
from linearno.run_config import RunConfig
from linearno.run_folder import refuse_another_run
from linearno.training import Interrupted

PAGE = "index.html"
BUG = "internal error; see the printed traceback"


def gallery(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="benchmarks; all by default", autocompletion=lambda: list(GALLERY)),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for data, runs and the page")] = ROOT,
    device: DeviceOption = "auto",
    figures: Annotated[
        Path | None, typer.Option(help="folder for the figure of each benchmark as a small PNG")
    ] = None,
) -> None:
    """Generate a small data set of every benchmark, train a small model on each, and show all on one page.

    Each benchmark takes one to three minutes on two cores; its results are added to the page when it is
    finished. Stop with Ctrl-C at any time: the same command resumes.

    Examples:

      linearno gallery
      linearno gallery darcy elasticity
    """
    with user_errors(), exit_on_interrupt():
        selected = {name: GALLERY[name] for name in dict.fromkeys(names or GALLERY)}
        resolve_device(device)
        for name in selected:
            refuse_another_run(_run_folder(out, name), run_config(out, name))
        with folder_lock(writable_folder(out)):
            failed = run_all(out, list(selected), device)
        done = [name for name in GALLERY if is_finished(out, name)]
        console.print(results_table(out, done))
        if figures is not None:
            write_strips(figures, [_card(out, name) for name in done])
        console.print(f"gallery: {out / PAGE}")
        if failed:
            raise typer.Exit(1 if BUG in failed.values() else 2)


def run_all(out: Path, names: list[str], device: str) -> dict[str, str]:
    """Solve and train the unfinished benchmarks one after the other; return errors by name."""
    todo, failed = [name for name in names if not is_finished(out, name)], dict[str, str]()
    console.print(_time_estimate(todo, out))
    write_page(out, failed)
    for name in todo:
        try:
            generate_data(out, name)
            train_model(out, name, device)
        except Interrupted:
            raise
        except UserError as error:
            failed[name] = str(error)
        except Exception:  # a bug in one benchmark must not stop the others
            traceback.print_exc()
            failed[name] = BUG
        if name in failed:
            typer.echo(f"error: {name}: {failed[name]}", err=True)
        write_page(out, failed)
    return failed


def _time_estimate(todo: list[str], out: Path) -> str:
    if not todo:
        return f"all benchmarks are finished → {out / PAGE}"
    each = ", ".join(f"{name} {GALLERY[name].seconds} s" for name in todo)
    minutes = sum(GALLERY[name].seconds for name in todo) / 60
    return f"solving and training takes about {minutes:.2g} min on two cores: {each} → {out / PAGE}"


def run_config(out: Path, name: str) -> RunConfig:
    """The run of a benchmark, with its data below `out`."""
    return override(GALLERY[name].recipe(), [f"data.root={out / name / 'data'}"])


def _run_folder(out: Path, name: str) -> Path:
    return out / name / "run"


def _report(out: Path, name: str) -> Path:
    return out / name / "report.html"


def is_finished(out: Path, name: str) -> bool:
    """Whether the report, which is written last, exists."""
    return _report(out, name).exists()


def generate_data(out: Path, name: str) -> None:
    """Generate the data of a benchmark; the time spent, summed over interruptions, goes to solving.json."""
    entry, data = GALLERY[name], run_config(out, name).data
    generate = DATASETS[data.name].generate
    assert generate is not None
    sizes = {"train": data.train, "test": data.test}
    console.print(f"{entry.title}: solving {sum(sizes.values())} samples → {data.root}")
    previous_seconds = _solver_seconds(out, name) or 0.0
    began, solved = time.perf_counter(), 0
    try:
        with progress_bar(f"{name}  solving", sum(sizes.values())) as advance:

            def tick(count: int) -> None:
                nonlocal solved
                solved += count
                advance(count)

            generate(
                data.root,
                sizes=sizes,
                resolution=entry.resolution,
                seed=0,
                workers=os.cpu_count() or 1,
                tick=tick,
                scheme=entry.scheme,
            )
    finally:
        if solved:
            seconds = previous_seconds + time.perf_counter() - began
            write_json(out / name / "solving.json", {"seconds": seconds})


def _solver_seconds(out: Path, name: str) -> float | None:
    """Seconds that the solver took so far."""
    path = out / name / "solving.json"
    return read_json(path, how="remove it")["seconds"] if path.exists() else None


def train_model(out: Path, name: str, device: str) -> None:
    """Train the model of a benchmark and write its report."""
    run_with_bar(run_config(out, name), _run_folder(out, name), device)
    write_report([_run_folder(out, name)], _report(out, name))


def write_page(out: Path, failed: dict[str, str]) -> None:
    """Write the page: a card for each finished benchmark, and notes on failed and missing ones."""
    notes = {GALLERY[name].title: message for name, message in failed.items()}
    missing = [name for name in GALLERY if name not in failed and not is_finished(out, name)]
    if missing:
        notes["Not finished"] = f"“linearno gallery {' '.join(missing)}” adds these benchmarks."
    write_gallery(out / PAGE, [_card(out, name) for name in GALLERY if is_finished(out, name)], notes)


def _card(out: Path, name: str) -> GalleryCard:
    entry = GALLERY[name]
    return GalleryCard(
        name=name,
        title=entry.title,
        task=entry.task,
        run=_run_folder(out, name),
        report=_report(out, name),
        solver_seconds=_solver_seconds(out, name),
    )


def results_table(out: Path, names: list[str]) -> Table:
    """Test errors of the finished runs, and seconds of solving and training."""
    table = Table("benchmark", "error", box=None, pad_edge=False)
    for column in ("test", "mean field", "solving s", "training s"):
        table.add_column(column, justify="right")
    for name in names:
        metrics = read_json(_run_folder(out, name) / "metrics.json", how="remove the folder and train again")
        metric, seconds = metrics["metric"], _solver_seconds(out, name)
        table.add_row(
            GALLERY[name].title,
            metric_title(metric),
            f"{metrics[metric]['mean']:.4f}",
            f"{metrics['mean_field'][metric]:.4f}",
            "" if seconds is None else f"{seconds:.0f}",
            f"{metrics['seconds']['train']:.0f}",
        )
    return table
