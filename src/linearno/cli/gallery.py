"""`linearno gallery`: every benchmark from solver to picture, on one page."""

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
from linearno.report import Shown, write_gallery, write_report, write_strips
from linearno.run_config import RunConfig
from linearno.run_folder import refuse_another_run
from linearno.training import Interrupted

PAGE = "index.html"
BUG = "an error of our own; what was printed says more"


def gallery(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="benchmarks; all by default", autocompletion=lambda: list(GALLERY)),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for data, runs and the page")] = ROOT,
    device: DeviceOption = "auto",
    figures: Annotated[
        Path | None, typer.Option(help="also write the figure of each benchmark here, as a small PNG")
    ] = None,
) -> None:
    """Generate a small set of every benchmark, train a small model on each, and show all on one page.

    Each takes one to three minutes on two cores, and the page gains a card when it is finished. Stop it with
    Ctrl-C whenever you like: the same command resumes.

    Examples:

      linearno gallery
      linearno gallery darcy elasticity
    """
    with user_errors(), exit_on_interrupt():
        asked = {name: GALLERY[name] for name in dict.fromkeys(names or GALLERY)}
        resolve_device(device)
        for name in asked:
            refuse_another_run(_run(out, name), small_run(out, name))
        with folder_lock(writable_folder(out)):
            failed = fill(out, list(asked), device)
        done = [name for name in GALLERY if finished(out, name)]
        console.print(compare(out, done))
        if figures is not None:
            write_strips(figures, [_shown(out, name) for name in done])
        console.print(f"gallery: {out / PAGE}")
        if failed:
            raise typer.Exit(1 if BUG in failed.values() else 2)


def fill(out: Path, names: list[str], device: str) -> dict[str, str]:
    """Do what is not finished, one benchmark after the other; what went wrong with some, by name."""
    todo, failed = [name for name in names if not finished(out, name)], dict[str, str]()
    console.print(_budget(todo, out))
    write_page(out, failed)
    for name in todo:
        try:
            solve(out, name)
            learn(out, name, device)
        except Interrupted:
            raise
        except UserError as error:
            failed[name] = str(error)
        except Exception:  # a bug in one benchmark: its traceback is shown, and the others go on
            traceback.print_exc()
            failed[name] = BUG
        if name in failed:
            typer.echo(f"error: {name}: {failed[name]}", err=True)
        write_page(out, failed)
    return failed


def _budget(todo: list[str], out: Path) -> str:
    if not todo:
        return f"all is there already → {out / PAGE}"
    each = ", ".join(f"{name} {GALLERY[name].seconds} s" for name in todo)
    whole = sum(GALLERY[name].seconds for name in todo) / 60
    return f"to solve and to learn, about {whole:.2g} min on two cores: {each} → {out / PAGE}"


def small_run(out: Path, name: str) -> RunConfig:
    return override(GALLERY[name].recipe(), [f"data.root={out / name / 'data'}"])


def _run(out: Path, name: str) -> Path:
    return out / name / "run"


def _report(out: Path, name: str) -> Path:
    return out / name / "report.html"


def finished(out: Path, name: str) -> bool:
    """The report is written last."""
    return _report(out, name).exists()


def solve(out: Path, name: str) -> None:
    """The data of one benchmark; how long it took, with all interruptions, is kept beside them."""
    entry, data = GALLERY[name], small_run(out, name).data
    generate = DATASETS[data.name].generate
    assert generate is not None
    sizes = {"train": data.train, "test": data.test}
    console.print(f"{entry.title}: solving {sum(sizes.values())} samples → {data.root}")
    before, began, made = _solving(out, name) or 0.0, time.perf_counter(), 0
    try:
        with progress_bar(f"{name}  solving", sum(sizes.values())) as advance:

            def tick(count: int) -> None:
                nonlocal made
                made += count
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
        if made:
            write_json(out / name / "solving.json", {"seconds": before + time.perf_counter() - began})


def _solving(out: Path, name: str) -> float | None:
    """Seconds that the solver took so far."""
    path = out / name / "solving.json"
    return read_json(path, how="remove it")["seconds"] if path.exists() else None


def learn(out: Path, name: str, device: str) -> None:
    run_with_bar(small_run(out, name), _run(out, name), device)
    write_report([_run(out, name)], _report(out, name))


def write_page(out: Path, failed: dict[str, str]) -> None:
    """The page with a card for each finished benchmark, and a word on the others."""
    notes = {GALLERY[name].title: words for name, words in failed.items()}
    absent = [name for name in GALLERY if name not in failed and not finished(out, name)]
    if absent:
        notes["Not here yet"] = f"“linearno gallery {' '.join(absent)}” adds what is missing."
    write_gallery(out / PAGE, [_shown(out, name) for name in GALLERY if finished(out, name)], notes)


def _shown(out: Path, name: str) -> Shown:
    entry = GALLERY[name]
    return Shown(
        name=name,
        title=entry.title,
        task=entry.task,
        run=_run(out, name),
        report=_report(out, name),
        solving=_solving(out, name),
    )


def compare(out: Path, names: list[str]) -> Table:
    """Test errors of the finished runs, with the seconds spent on solving and training."""
    table = Table("benchmark", "error", box=None, pad_edge=False)
    for column in ("test", "the mean field", "solving s", "training s"):
        table.add_column(column, justify="right")
    for name in names:
        metrics = read_json(_run(out, name) / "metrics.json", how="remove the folder and train again")
        metric, solving = metrics["metric"], _solving(out, name)
        table.add_row(
            GALLERY[name].title,
            metric_title(metric),
            f"{metrics[metric]['mean']:.4f}",
            f"{metrics['mean_field'][metric]:.4f}",
            "" if solving is None else f"{solving:.0f}",
            f"{metrics['seconds']['train']:.0f}",
        )
    return table
