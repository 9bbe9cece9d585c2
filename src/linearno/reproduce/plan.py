"""Which runs an item still needs, in an order that generates each data set once, and how long they take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from linearno.core.config import first_difference
from linearno.core.errors import UserError
from linearno.reproduce.items import Cell, Selection
from linearno.reproduce.records import Record, read_records
from linearno.run_config import RunConfig

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
    """What the records say about one cell: values by seed, and records of another protocol.

    Args:
        records: records by seed.
        misfits: messages about records of another protocol.
        measure: metric or summary of the run that the cell shows; its main metric if empty.
    """

    records: Mapping[int, Record]
    misfits: Sequence[str]
    measure: str = ""

    @property
    def values(self) -> list[float]:
        if not self.measure:
            return [record.value for record in self.records.values()]
        return [record.details["measures"][self.measure] for record in self.records.values()]


def run_key(config: RunConfig) -> str:
    """Identifies a run whatever folder its data are in."""
    data = config.data.model_copy(update={"root": Path("data") / config.data.name})
    return config.model_copy(update={"data": data}).fingerprint


def stored_records(folder: Path) -> dict[str, Record]:
    return read_records(folder).records if folder.is_dir() else {}


def look_up(cell: Cell, seeds: Sequence[int], records: Mapping[str, Record]) -> Found:
    """The records of a cell with these seeds, if their protocol is that of the cell."""
    fitting, misfits = {}, []
    for seed in seeds if cell.config is not None else ():
        ids = [cell.record_id(seed)]
        if seed == 0 and cell.id.startswith("train/"):
            ids.append(cell.id)
        for record in (records[id] for id in ids if id in records):
            if cell.measure and cell.measure not in record.details.get("measures", {}):
                misfits.append(f"{record.id} has no {cell.measure} and is not shown")
            elif difference := _difference(record, cell.seeded(seed)):
                misfits.append(f"{record.id} is a record of another protocol ({difference}) and not shown")
            elif seed not in fitting:
                fitting[seed] = record
    return Found(fitting, misfits, cell.measure)


def _difference(record: Record, config: RunConfig) -> str | None:
    """The first setting of a record's run that is not the cell's; None if there is none."""
    stored = record.details.get("settings")
    if not isinstance(stored, dict):
        return "it has no settings"
    data = {**stored.get("data", {}), "root": str(config.data.root)}
    try:
        run = RunConfig.make({**stored, "data": data})
    except UserError as error:
        return str(error)
    return first_difference(_protocol(run), _protocol(config))


def _protocol(config: RunConfig) -> dict[str, object]:
    values = config.model_dump(mode="json", exclude={"recipe", "init_from"})
    values["training"] = {k: v for k, v in values["training"].items() if k not in PROTOCOL_FREE}
    values["data"] = {k: v for k, v in values["data"].items() if k not in ("root", "source")}
    return values


def pending(
    cells: Sequence[Cell],
    selection: Selection,
    records: Mapping[str, Record],
    suffices: Callable[[Planned], bool] = lambda run: True,
) -> list[Planned]:
    """The runs without a record: data set by data set, each configuration once.

    `suffices` says whether the record of a run is enough; else it is run although it has one.
    """
    runs: dict[str, Planned] = {}
    for cell in cells:
        if cell.config is None:
            continue
        found = look_up(cell, selection.seeds, records)
        for seed in selection.seeds:
            config, id = cell.seeded(seed), cell.record_id(seed)
            if seed not in found.records or not suffices(Planned(config, ())):
                known = runs.get(run_key(config))
                ids = (*known.ids, id) if known else (id,)
                runs[run_key(config)] = Planned(known.config if known else config, tuple(dict.fromkeys(ids)))
    order = list(dict.fromkeys(_data_key(run.config) for run in runs.values()))
    return sorted(runs.values(), key=lambda run: order.index(_data_key(run.config)))


def _data_key(config: RunConfig) -> str:
    return f"{config.data.name} {config.data.train} {config.data.test}"


def minutes_of(run: Planned, records: Mapping[str, Record], *, cuda: bool) -> float | None:
    """About how long the run takes, from records of its recipe, else benchmark, on this kind of device."""
    for part in (run.config.recipe, run.config.data.name):
        if found := list(_minutes_per_epoch(part, run.config, records, cuda)):
            return median(found) * run.config.training.epochs
    return None


def _minutes_per_epoch(
    part: str, config: RunConfig, records: Mapping[str, Record], cuda: bool
) -> Iterator[float]:
    for record in records.values():
        data = record.details.get("settings", {}).get("data", {})
        of_recipe = record.recipe == part or (record.recipe or "").startswith(f"{part}/")
        same_kind = ("NVIDIA" in record.machine) == cuda
        if of_recipe and same_kind and record.epochs and record.device_minutes and data.get("train"):
            yield record.device_minutes / record.epochs * config.data.train / data["train"]
