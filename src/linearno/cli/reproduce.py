"""`linearno reproduce`: run what a table or figure of the paper lacks, and write its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.cli.train import exit_on_interrupt
from linearno.core.atomic_io import folder_lock, writable_folder
from linearno.core.device import device_name, resolve_device
from linearno.core.durations import format_duration
from linearno.core.errors import UserError, look_up
from linearno.data import DATASETS
from linearno.models import MODELS
from linearno.reproduce import published
from linearno.reproduce.cells import Selection
from linearno.reproduce.cluster import execute_distributed
from linearno.reproduce.computed import COMPUTED, compute_item
from linearno.reproduce.dask_client import connect
from linearno.reproduce.execute import OnEpoch, OutOfTime, execute_all
from linearno.reproduce.filled import Filled, fill, item_page, reasons
from linearno.reproduce.item_figures import item_figures, suffices
from linearno.reproduce.items import ITEMS, cells_of
from linearno.reproduce.overview import ALIASES, HEAD, item_names, overview
from linearno.reproduce.packing import default_jobs
from linearno.reproduce.pages import write_page
from linearno.reproduce.plan import Planned, pending, stored_records
from linearno.reproduce.records import Record
from linearno.reproduce.time_estimate import estimate
from linearno.run_config import RunConfig, benchmark_names
from linearno.training import EpochRecord

SMALL_SET = (100, 20)  # training and test samples on a CPU, unless --full
NOTHING_TO_RUN = "every cell has its record"
BUSY = "another process reproduces in {root}; choose another --out"


def reproduce(
    item: Annotated[
        str | None,
        typer.Argument(help="table or figure; none: list them", autocompletion=item_names),
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
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="runs at the same time on this machine; by default one for each GPU"),
    ] = None,
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
        name = _item_name(item)
        selection = Selection(
            models=_known(models, {*MODELS, *published.TABLE1}, lambda name: MODELS[name]),
            benchmarks=_known(
                benchmarks, benchmark_names() | published.INDUSTRIAL, lambda name: DATASETS[name]
            ),
            epochs=epochs,
            seeds=tuple(range(seeds)),
            samples=_samples(samples, full, device),
            changes=tuple(set_ or ()),
        )
        if name is None or list_:
            _print_overview(stored_records(folder), out, selection, device)
        elif name in COMPUTED:
            _require_no_choice(models, benchmarks, epochs, seeds, samples, set_)
            with folder_lock(writable_folder(out), busy=BUSY):
                _say(compute_item(name, out, folder).page.text)
            _say(f"page: {out / f'{name}.html'}")
        else:
            _require_one_way(jobs, scheduler)
            work = Work(name, selection, out, folder, device, minutes, jobs, scheduler)
            work.do(dry_run=dry_run)


@dataclass(frozen=True)
class Work:
    """The runs that an item lacks, and where their results go."""

    item: str
    selection: Selection
    out: Path
    records: Path
    device: str
    minutes: float | None
    jobs: int | None
    scheduler: str | None

    def do(self, *, dry_run: bool) -> None:
        """Show the plan, run what is missing, write the page after every run; raise if a cell is left out."""
        stored, cells = stored_records(self.records), cells_of(self.item, self.selection)
        planned = pending(cells, self.selection, stored, suffices(ITEMS[self.item], self.out))
        filled = fill(ITEMS[self.item], self.selection, stored)
        if not filled.counts()[1] and not dry_run:
            raise UserError(f"{self.item} has no cell to run here: {'; '.join(reasons(filled))}")
        for text in reasons(filled):
            _say(f"left out: {text}")
        _say(_plan_text(planned, stored, self.device) if planned else NOTHING_TO_RUN)
        with folder_lock(writable_folder(self.out), busy=BUSY):
            self.write()
            failed = {} if dry_run or not planned else self.run(planned)
            filled = self.write()
        done, whole = filled.counts()
        _say(f"{done} of {whole} cells filled → {self.out / f'{self.item}.html'}")
        if failed:
            name, reason = next(iter(failed.items()))
            raise UserError(f"{len(failed)} of {len(planned)} runs failed; {name}: {reason}")
        if filled.blocked:
            raise UserError(filled.blocked[0])

    def write(self) -> Filled:
        """Write the pages and figures as far as there are records."""
        filled = fill(ITEMS[self.item], self.selection, stored_records(self.records))
        write_page(self.out, self.item, item_page(filled, item_figures(filled, self.out)))
        return filled

    def run(self, planned: Sequence[Planned]) -> dict[str, str]:
        """Run all here or on a cluster; what failed, by name of the run."""
        places = (planned, self.out, self.records, self.device)
        small = self.selection.samples is not None
        jobs = self.jobs or (default_jobs(planned, self.device) if self.scheduler is None else 1)
        try:
            if jobs == 1 and self.scheduler is None:
                return execute_all(
                    *places, small=small, minutes=self.minutes, tell=_say, follow=_follow, finished=self.write
                )
            with connect(self.scheduler, jobs) as client:
                sharing = jobs if self.scheduler is None else None
                return execute_distributed(
                    *(client, *places),
                    small=small,
                    minutes=self.minutes,
                    jobs=sharing,
                    tell=_say,
                    finished=self.write,
                )
        except OutOfTime:
            _say("the time is over; the same command resumes")
            return {}


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _item_name(item: str | None) -> str | None:
    """The item; an error with near misses for an unknown one."""
    if item is None:
        return None
    return look_up("item of the paper", item, {name: name for name in item_names()} | ALIASES)


def _print_overview(records: Mapping[str, Record], out: Path, selection: Selection, device: str) -> None:
    where = resolve_device(device)
    table = Table(*HEAD, box=None, pad_edge=False, header_style="bold")
    for line in overview(records, out, selection, cuda=where.type == "cuda"):
        table.add_row(*map(escape, line))
    console.print(table)
    small = (
        ""
        if selection.samples is None
        else ", {} training and {} test samples (all: --full)".format(*selection.samples)
    )
    epochs = "published numbers of epochs" if selection.epochs is None else f"{selection.epochs} epochs"
    _say(f"on {device_name(where)}: {epochs}{small}, {len(selection.seeds)} seed(s)")


def _samples(samples: tuple[int, int] | None, full: bool, device: str) -> tuple[int, int] | None:
    """Training and test samples of a small set; None: all."""
    if samples and full:
        raise UserError("--samples and --full exclude each other: leave one out")
    on_cpu = resolve_device(device).type == "cpu"
    return samples or (SMALL_SET if on_cpu and not full else None)


def _require_no_choice(*options: object) -> None:
    if any(option not in (None, 1, []) for option in options):
        raise UserError("this item is computed without training: leave models, benchmarks, epochs, seeds out")


def _require_one_way(jobs: int | None, scheduler: str | None) -> None:
    if jobs and scheduler is not None:
        raise UserError("--jobs starts processes here, --scheduler uses those of a cluster: give one of them")


def _known(
    names: list[str] | None, known: set[str], look_up: Callable[[str], object]
) -> tuple[str, ...] | None:
    """The names given as `--option a,b --option c`; `look_up` raises the error for an unknown one."""
    wanted = tuple(name for text in names or () for name in text.split(","))
    for name in wanted:
        if name not in known:
            look_up(name)
    return wanted or None


def _plan_text(runs: Sequence[Planned], records: Mapping[str, Record], device: str) -> str:
    names = list(dict.fromkeys(run.config.data.name for run in runs))
    where = resolve_device(device)
    time = estimate(runs, records, cuda=where.type == "cuda")
    return f"{len(runs)} runs on {device_name(where)}, data of {', '.join(names)}; {time}"


def _follow(config: RunConfig) -> OnEpoch:
    """One line about every tenth of a run."""
    every = max(1, config.training.epochs // 10)

    def on_epoch(record: EpochRecord) -> None:
        if record.epoch % every == 0:
            left = format_duration(record.seconds * (config.training.epochs - record.epoch))
            epoch = f"epoch {record.epoch}/{config.training.epochs}"
            _say(f"  {epoch}  loss {record.loss:.4g}  about {left} left")

    return on_epoch
