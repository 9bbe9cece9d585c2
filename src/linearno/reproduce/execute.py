"""Run what an item needs, one run after another; every finished run becomes records at once."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from linearno.core.device import available_cores, resolve_device
from linearno.core.errors import UserError
from linearno.data import DATASETS, DataConfig
from linearno.data.availability import describe_available
from linearno.data.generation.card import CARD, read_card
from linearno.experiment import run
from linearno.reproduce.plan import Planned
from linearno.reproduce.records import write_record
from linearno.reproduce.run_records import record_of_run
from linearno.run_config import RunConfig
from linearno.training import EpochRecord, Interrupted

CHECKPOINT_SECONDS = 20.0  # a killed run loses at most this much, and one step

log = logging.getLogger(__name__)

Tell = Callable[[str], None]
OnEpoch = Callable[[EpochRecord], None]


class OutOfTime(Exception):
    """The time limit was reached; the current run is in its checkpoint."""


def with_data(config: RunConfig, folder: Path, *, small: bool) -> RunConfig:
    """The run with its data in the benchmark's own folder, or a small set in `folder`."""
    if not small:
        return config
    root = folder / "data" / f"{config.data.name}-{config.data.train}-{config.data.test}"
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def prepare_data(data: DataConfig, device: str, tell: Tell) -> None:
    """Generate the set if its folder has none; an unfinished one is completed."""
    benchmark = DATASETS[data.name]
    if (data.root / CARD).exists():
        have = read_card(data.root, how="remove it").sizes
        if any(have.get(split, 0) < count for split, count in data.sizes.items()):
            sizes = ", ".join(f"{split} {count}" for split, count in have.items())
            raise UserError(f"{data.root} has too few samples ({sizes}); remove it or choose another --out")
        return
    if benchmark.published and describe_available(data.name, data.root, benchmark.published).startswith(
        "pub"
    ):
        return
    if benchmark.generate is None or benchmark.resolution is None:
        raise UserError(f"{data.name} has no solver here; put its published files into {data.root}")
    tell(f"{data.name}: generating {sum(data.sizes.values()):,} samples → {data.root}")
    benchmark.generate(
        data.root,
        sizes=data.sizes,
        resolution=benchmark.resolution,
        seed=0,
        workers=available_cores(),
        tick=lambda count: None,
        device=device,
        scheme=None,
    )


def run_folder(out: Path, planned: Planned) -> Path:
    return out / "runs" / planned.name


def execute(
    planned: Planned,
    out: Path,
    records: Path,
    device: str,
    *,
    small: bool,
    until: float = float("inf"),
    on_epoch: OnEpoch = lambda record: None,
) -> None:
    """Train and evaluate one run, or resume it, and write its records.

    Args:
        planned: the run.
        out: folder of runs and small data sets.
        records: folder of the records.
        device: "cpu", "cuda", … or "auto".
        small: whether the data are a small set in `out`.
        until: `time.monotonic()` at which to stop; the run is then in its checkpoint.
        on_epoch: called after every epoch.
    """
    folder = run_folder(out, planned)
    if not (folder / "metrics.json").exists():
        config = with_data(_checkpointed(planned.config), out, small=small)
        if time.monotonic() > until:
            raise OutOfTime
        try:
            run(config, folder, resolve_device(device), on_epoch, until)
        except Interrupted:
            if time.monotonic() > until:
                raise OutOfTime from None
            raise
    for id in planned.ids:
        write_record(records, record_of_run(folder, id))


def describe(error: BaseException) -> str:
    """One line; the kind of error too unless a user can correct it."""
    if isinstance(error, UserError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def _checkpointed(config: RunConfig) -> RunConfig:
    training = config.training.model_copy(update={"checkpoint_seconds": CHECKPOINT_SECONDS})
    return config.model_copy(update={"training": training})


def execute_all(
    runs: Sequence[Planned],
    out: Path,
    records: Path,
    device: str,
    *,
    small: bool,
    minutes: float | None,
    tell: Tell,
    follow: Callable[[RunConfig], OnEpoch] = lambda config: lambda record: None,
    finished: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Run all, in order; a run that fails is reported and the others go on.

    Returns what failed, by name of the run. Raises `OutOfTime` when the minutes are over.
    """
    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    failed: dict[str, str] = {}
    for place, planned in enumerate(runs, start=1):
        if time.monotonic() > until:
            raise OutOfTime
        tell(f"[{place}/{len(runs)}] {planned.name}")
        try:
            if not (run_folder(out, planned) / "metrics.json").exists():
                prepare_data(with_data(planned.config, out, small=small).data, device, tell)
            execute(planned, out, records, device, small=small, until=until, on_epoch=follow(planned.config))
        except (Interrupted, OutOfTime):
            raise
        except Exception as error:
            failed[planned.name] = describe(error)
            tell(f"failed: {planned.name}: {failed[planned.name]}")
            if not isinstance(error, UserError):
                log.warning("%s", planned.name, exc_info=error)
        finished()
    return failed
