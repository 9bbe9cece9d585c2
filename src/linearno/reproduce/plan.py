"""What the records say about a cell, and which runs an item still needs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linearno.core.config import first_difference
from linearno.core.errors import UserError
from linearno.reproduce.cells import Cell, Selection
from linearno.reproduce.records import Record, read_records
from linearno.run_config import RunConfig

RUN_RECORDS = ("train/", "league/", "reproduce/")
PROTOCOL_FREE = {
    "checkpoint_epochs",
    "checkpoint_seconds",
    "precision",
    "eval_precision",
    "eval_batch",
    "capture",
}


@dataclass(frozen=True)
class Planned:
    """A run, and the records that it gives: the same run can fill cells of several tables."""

    config: RunConfig
    ids: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the run folder: readable, and different for different configurations."""
        parts = (self.config.recipe.replace("/", "-"), f"{self.config.training.epochs}-epochs")
        return "-".join((*parts, f"seed{self.config.seed}", run_key(self.config)[:8]))


@dataclass(frozen=True)
class Found:
    """What the records say about one cell.

    Args:
        records: record of each seed.
        misfits: what differs in records of another protocol, one sentence each.
        metric: metric that the cell shows; the main metric if None.
        blocked: seeds whose record would replace one of another protocol.
    """

    records: Mapping[int, Record]
    misfits: Sequence[str]
    metric: str | None = None
    blocked: Mapping[int, str] = field(default_factory=dict)

    @property
    def values(self) -> list[float]:
        return [metric_value(record, self.metric) for record in self.records.values()]


def metric_value(record: Record, metric: str | None) -> float:
    """The main metric, the mean of another one, or a summary of the test set."""
    if metric is None:
        return record.value
    summaries = record.details.get("summaries", {})
    return float(summaries[metric] if metric in summaries else record.details[metric]["mean"])


def run_key(config: RunConfig) -> str:
    """Identifies a run whatever folder its data are in."""
    data = config.data.model_copy(update={"root": Path("data") / config.data.name})
    return config.model_copy(update={"data": data}).fingerprint


def stored_records(folder: Path) -> dict[str, Record]:
    return read_records(folder).records if folder.is_dir() else {}


SameRuns = Mapping[str, Mapping[int, Record]]  # by protocol and seed


def same_runs(records: Mapping[str, Record]) -> SameRuns:
    """Records by protocol and seed: the same run can be a cell of several tables."""
    found: dict[str, dict[int, Record]] = {}
    for record in records.values():
        if (config := _stored_config(record)) is not None and record.id.startswith(RUN_RECORDS):
            for seed, single in _by_seed(record).items():
                found.setdefault(_protocol_key(config), {}).setdefault(seed, single)
    return found


def look_up(
    cell: Cell, seeds: Sequence[int], records: Mapping[str, Record], same: SameRuns | None = None
) -> Found:
    """The records of a cell with these seeds, if their protocol is that of the cell.

    Args:
        cell: the cell.
        seeds: wanted seeds.
        records: by id.
        same: `same_runs(records)`, to find the run also under the id of another cell.
    """
    fitting: dict[int, Record] = {}
    misfits: list[str] = []
    blocked: dict[int, str] = {}
    if cell.config is None:
        return Found(fitting, misfits, cell.metric)
    for seed in seeds:
        id = cell.record_id(seed)
        for name in dict.fromkeys((id, cell.id)):
            if name not in records or seed in fitting:
                continue
            record = _by_seed(records[name]).get(seed)
            if record is None and name != id:
                continue  # of other seeds only
            difference = _difference(record, cell) if record else f"seed {records[name].seed}, not {seed}"
            if record is None or difference:
                misfits.append(f"{name} is a record of another protocol ({difference}) and not shown")
                if name == id:
                    blocked[seed] = f"{misfits[-1]}; move it or choose another folder with --records"
            else:
                fitting[seed] = record
        record = (same or {}).get(_protocol_key(cell.config), {}).get(seed)
        if seed not in fitting and record and not _difference(record, cell):
            fitting[seed] = record
            blocked.pop(seed, None)
    return Found(fitting, misfits, cell.metric, blocked)


def _by_seed(record: Record) -> dict[int, Record]:
    """The record by its seed; a record of the mean over seeds as one record for each seed."""
    seeds = record.details.get("seeds") or [{"seed": record.seed}]
    return {
        run["seed"]: record.model_copy(
            update={name: run[name] for name in ("seed", "value", "device_minutes", "commit") if name in run}
        )
        for run in seeds
        if run["seed"] is not None
    }


def _difference(record: Record, cell: Cell) -> str | None:
    """The first setting of a record's run that is not the cell's; None if there is none."""
    if not isinstance(record.details.get("settings"), dict):
        return "it has no settings"
    try:
        run = _make_config(record.details["settings"])
    except UserError as error:
        return str(error)
    assert cell.config is not None
    if difference := first_difference(_protocol(run), _protocol(cell.config)):
        return difference
    if cell.metric and cell.metric not in {*record.details, *record.details.get("summaries", {})}:
        return f"it has no {cell.metric}"
    return None


def _stored_config(record: Record) -> RunConfig | None:
    settings = record.details.get("settings")
    try:
        return _make_config(settings) if isinstance(settings, dict) else None
    except UserError:  # of an earlier version, or of a model that is not imported
        return None


def _make_config(settings: Mapping[str, Any]) -> RunConfig:
    return RunConfig.make({**settings, "data": {**settings.get("data", {}), "root": "data"}})


def _protocol(run: RunConfig) -> dict[str, Any]:
    values = run.model_dump(mode="json", exclude={"recipe", "init_from", "seed"})
    values["training"] = {k: v for k, v in values["training"].items() if k not in PROTOCOL_FREE}
    values["data"] = {k: v for k, v in values["data"].items() if k not in ("root", "source")}
    return values


def _protocol_key(run: RunConfig) -> str:
    return json.dumps(_protocol(run), sort_keys=True)


def pending(
    cells: Sequence[Cell],
    selection: Selection,
    records: Mapping[str, Record],
    suffices: Callable[[Planned], bool] = lambda run: True,
) -> list[Planned]:
    """The runs without a record: data set by data set, each configuration once.

    A run whose record would replace one of another protocol is left out.

    `suffices` says whether the record of a run is enough; else it is run although it has one.
    """
    runs: dict[str, Planned] = {}
    same = same_runs(records)
    for cell in cells:
        if cell.config is None:
            continue
        found = look_up(cell, selection.seeds, records, same)
        for seed in selection.seeds:
            config, id = cell.seeded(seed), cell.record_id(seed)
            if seed in found.blocked:
                continue
            if seed not in found.records or not suffices(Planned(config, ())):
                known = runs.get(run_key(config))
                ids = (*known.ids, id) if known else (id,)
                runs[run_key(config)] = Planned(known.config if known else config, tuple(dict.fromkeys(ids)))
    order = list(dict.fromkeys(_data_key(run.config) for run in runs.values()))
    return sorted(runs.values(), key=lambda run: order.index(_data_key(run.config)))


def _data_key(config: RunConfig) -> str:
    return f"{config.data.name} {config.data.train} {config.data.test}"
