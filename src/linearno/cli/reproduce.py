"""`linearno reproduce`: run what a table or figure of the paper lacks, and write its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.cli.train import exit_on_interrupt
from linearno.core.atomic_io import folder_lock, writable_folder
from linearno.core.device import device_name, resolve_device
from linearno.core.durations import format_duration
from linearno.core.errors import UserError, look_up
from linearno.data import DATASETS
from linearno.models import MODELS
from linearno.reproduce import published
from linearno.reproduce.cluster import connect, execute_distributed
from linearno.reproduce.computed import COMPUTED, compute_item
from linearno.reproduce.execute import OnEpoch, OutOfTime, execute_all
from linearno.reproduce.items import ITEMS, Selection, cells_of
from linearno.reproduce.pages import Filled, fill, item_figures, item_page, suffices, write_page
from linearno.reproduce.plan import Planned, minutes_of, pending, stored_records
from linearno.reproduce.records import Record
from linearno.run_config import RunConfig
from linearno.training import EpochRecord

SMALL_SET = (100, 20)  # training and test samples on a CPU, unless --full
BUSY = "another process reproduces in {root}; choose another --out"


def reproduce(
    item: Annotated[
        str | None,
        typer.Argument(help="table or figure; none: list them", autocompletion=lambda: [*ITEMS, *COMPUTED]),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="list the items and how much of each is done")
    ] = False,
    models: Annotated[
        list[str] | None, typer.Option("--models", help="rows, separated by commas; all by default")
    ] = None,
    benchmarks: Annotated[
        list[str] | None, typer.Option("--benchmarks", help="columns, separated by commas; all by default")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="of each run; the published number by default")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds: 0, 1, …")] = 1,
    minutes: Annotated[float | None, typer.Option(min=0, help="stop after this time")] = None,
    device: DeviceOption = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="runs at the same time on this machine")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler, such as tcp://host:8786")
    ] = None,
    samples: Annotated[
        tuple[int, int] | None,
        typer.Option(help="training and test samples of a small set; 100 20 on a CPU"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="all samples, also on a CPU")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change a setting of every run")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder of pages, runs and small data sets")
    ] = Path("reproduce"),
    records: Annotated[
        Path | None, typer.Option(help="folder of the records; OUT/records by default")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the plan and write the page; run nothing")
    ] = False,
) -> None:
    """Reproduce a table or figure of Hu et al. (2026): plan the runs, run what is missing, write the page.

    Every finished run is a record; a cell with a record is not run again, and one
    without is shown as not run. Stop with Ctrl-C at any time: the same command
    resumes. On a CPU each run uses a small set, and the page says so; --full uses
    all samples.

    Examples:

      linearno reproduce --list
      linearno reproduce table4 --benchmarks elasticity --epochs 2 --device cpu
      linearno reproduce table1 --models linearno,fno --benchmarks darcy
      linearno reproduce table6 --epochs 100 --minutes 25
      linearno reproduce table1 --scheduler tcp://host:8786 --records results
    """
    with user_errors(), exit_on_interrupt():
        folder = records or out / "records"
        numbers = tuple(range(seeds))
        if item is not None and item not in COMPUTED:
            look_up("item of the paper", item, {name: name for name in (*ITEMS, *COMPUTED)})
        if item is None or list_:
            console.print(
                _overview(folder, out, Selection(epochs=epochs, seeds=numbers), device), soft_wrap=True
            )
            return
        if item in COMPUTED:
            _require_no_choice(models, benchmarks, epochs, seeds, samples, set_)
            with folder_lock(writable_folder(out), busy=BUSY):
                console.print(compute_item(item, out, folder).page.text, soft_wrap=True)
            console.print(f"page: {out / f'{item}.html'}", soft_wrap=True)
            return
        small = _samples(samples, full, device)
        _require_one_way(jobs, scheduler, minutes)
        selection = Selection(
            models=_known(models, {*MODELS, *published.TABLE1}, lambda name: MODELS[name]),
            benchmarks=_known(benchmarks, _benchmark_names(), lambda name: DATASETS[name]),
            epochs=epochs,
            seeds=numbers,
            samples=small,
            changes=tuple(set_ or ()),
        )
        cells = cells_of(item, selection)
        stored = stored_records(folder)
        planned = pending(cells, selection, stored, suffices(ITEMS[item], out))
        console.print(_plan_text(planned, stored, device), soft_wrap=True)
        with folder_lock(writable_folder(out), busy=BUSY):
            work = Work(item, selection, planned, out, folder, device, small is not None)
            work.write()
            failed = {} if dry_run or not planned else work.run(minutes, jobs, scheduler)
            filled = work.write()
        done, whole = filled.counts()
        for text in filled.misfits:
            console.print(text, soft_wrap=True)
        console.print(f"{done} of {whole} cells filled → {out / f'{item}.html'}", soft_wrap=True)
        if failed:
            raise typer.Exit(2)


@dataclass(frozen=True)
class Work:
    """The runs that an item lacks, and where their results go."""

    item: str
    selection: Selection
    planned: Sequence[Planned]
    out: Path
    records: Path
    device: str
    small: bool

    def write(self) -> Filled:
        """Write the pages and figures as far as there are records."""
        filled = fill(ITEMS[self.item], self.selection, stored_records(self.records))
        write_page(self.out, self.item, item_page(filled, item_figures(filled, self.out)))
        return filled

    def run(self, minutes: float | None, jobs: int, scheduler: str | None) -> dict[str, str]:
        """Run all here or on a cluster; what failed, by name of the run."""
        places = (self.planned, self.out, self.records, self.device)
        options: dict[str, Any] = {"small": self.small, "tell": _tell, "finished": self.write}
        if jobs > 1 or scheduler is not None:
            with connect(scheduler, jobs) as client:
                return execute_distributed(client, *places, **options)
        try:
            return execute_all(*places, minutes=minutes, follow=_follow, **options)
        except OutOfTime:
            console.print("the time is over; the same command resumes")
            return {}


def _tell(text: str) -> None:
    console.print(text, soft_wrap=True)


def _samples(samples: tuple[int, int] | None, full: bool, device: str) -> tuple[int, int] | None:
    """Training and test samples of a small set; None: all."""
    if samples and full:
        raise UserError("--samples and --full exclude each other: leave one out")
    on_cpu = resolve_device(device).type == "cpu"
    return samples or (SMALL_SET if on_cpu and not full else None)


def _require_no_choice(*options: object) -> None:
    if any(option not in (None, 1, []) for option in options):
        raise UserError("this item is computed without training: leave models, benchmarks, epochs, seeds out")


def _require_one_way(jobs: int, scheduler: str | None, minutes: float | None) -> None:
    if jobs > 1 and scheduler is not None:
        raise UserError("--jobs starts processes here, --scheduler uses those of a cluster: give one of them")
    if (jobs > 1 or scheduler is not None) and minutes is not None:
        raise UserError("--minutes stops runs of one process: leave --jobs and --scheduler out")


def _known(
    names: list[str] | None, known: set[str], look_up: Callable[[str], object]
) -> tuple[str, ...] | None:
    """The names given as `--option a,b --option c`; `look_up` raises the error for an unknown one."""
    wanted = tuple(name for text in names or () for name in text.split(","))
    for name in wanted:
        if name not in known:
            look_up(name)
    return wanted or None


def _benchmark_names() -> set[str]:
    return set(DATASETS) | {variant for name in DATASETS for variant in DATASETS[name].variants}


def _overview(folder: Path, out: Path, selection: Selection, device: str) -> str:
    """For each item: filled cells, about how much time is left, what it shows and needs."""
    records = stored_records(folder)
    lines = []
    for name in ITEMS:
        filled = fill(ITEMS[name], selection, records)
        done, whole = filled.counts()
        runs = pending(filled.cells, selection, records, suffices(ITEMS[name], out))
        left = _time_left(runs, records, device)
        state = ", ".join(
            filter(None, (f"{done} of {whole} cells filled" if whole else "no cell can run", left))
        )
        lines += [f"{name}: {state}", f"    {ITEMS[name].title}; needs {ITEMS[name].needs}"]
    for name in COMPUTED:
        state = "computed" if f"reproduce/{name}" in records else "takes seconds"
        lines += [f"{name}: {state}", f"    {COMPUTED[name].title}; needs no data"]
    return "\n".join(lines)


def _time_left(runs: list[Planned], records: Mapping[str, Record], device: str) -> str:
    """About how long the runs take on this kind of device, from records."""
    cuda = resolve_device(device).type == "cuda"
    known = [minutes for run in runs if (minutes := minutes_of(run, records, cuda=cuda)) is not None]
    unknown = len(runs) - len(known)
    if not runs:
        return ""
    text = f"about {format_duration(60 * sum(known))} left" if known else ""
    return f"{text}{' + ' if text else ''}{unknown} runs of unknown time" if unknown else text


def _plan_text(runs: list[Planned], records: Mapping[str, Record], device: str) -> str:
    if not runs:
        return "every cell has its record"
    names = list(dict.fromkeys(run.config.data.name for run in runs))
    where = device_name(resolve_device(device))
    return f"{len(runs)} runs on {where}, data of {', '.join(names)}; {_time_left(runs, records, device)}"


def _follow(config: RunConfig) -> OnEpoch:
    """One line about every tenth of a run."""
    every = max(1, config.training.epochs // 10)

    def on_epoch(record: EpochRecord) -> None:
        if record.epoch % every == 0:
            left = format_duration(record.seconds * (config.training.epochs - record.epoch))
            console.print(
                f"  epoch {record.epoch}/{config.training.epochs}  loss {record.loss:.4g}  about {left} left",
                soft_wrap=True,
            )

    return on_epoch
