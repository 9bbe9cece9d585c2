"""About how long runs take: from records, else from the speed of LinearNO on one GPU."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from linearno.core.device import available_cores
from linearno.core.durations import format_duration
from linearno.models import self_fitting
from linearno.reproduce.plan import Planned
from linearno.reproduce.records import Record
from linearno.run_config import RunConfig

H200_SECONDS = {  # of LinearNO with its recipe, for one epoch over SAMPLES; from results/train
    "airfoil": 0.82,
    "burgers": 1.1,
    "darcy": 0.70,
    "elasticity": 0.61,
    "ns": 4.5,
    "pipe": 1.2,
    "plasticity": 5.3,
}
SAMPLES = {"burgers": 4096, "plasticity": 900}  # of the training sets; else 1000
OTHER_MODELS = 2.0  # times the epoch of LinearNO: Transolver has 1.1 to 2
UNKNOWN_SECONDS = 5.0  # of an epoch on other benchmarks
CORE_FACTOR = 250.0  # one core of a CPU is this much slower than an H200
CLOSED_FORM_MINUTES = 1.0


@dataclass(frozen=True)
class Estimate:
    """Time of several runs.

    Args:
        minutes: of all runs.
        rough: whether a part has no record on this kind of device.
    """

    minutes: float
    rough: bool

    def __str__(self) -> str:
        return f"{'roughly' if self.rough else 'about'} {format_duration(60 * self.minutes)}"


def estimate(runs: Sequence[Planned], records: Mapping[str, Record], *, cuda: bool) -> Estimate:
    """Time of the runs on this kind of device."""
    known = [_recorded_minutes(run.config, records, cuda=cuda) for run in runs]
    minutes = [
        _rough_minutes(run.config, cuda=cuda) if found is None else found
        for run, found in zip(runs, known, strict=True)
    ]
    return Estimate(sum(minutes), None in known)


def _recorded_minutes(config: RunConfig, records: Mapping[str, Record], *, cuda: bool) -> float | None:
    """From records of the recipe, else of the benchmark."""
    for part in (config.recipe, config.data.name):
        if found := list(_minutes_per_epoch(part, config, records, cuda)):
            return median(found) * config.training.epochs
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


def _rough_minutes(config: RunConfig, *, cuda: bool) -> float:
    if self_fitting(config.model.name):
        return CLOSED_FORM_MINUTES
    name = config.data.name
    seconds = H200_SECONDS.get(name, UNKNOWN_SECONDS) * config.data.train / SAMPLES.get(name, 1000)
    model = 1.0 if config.model.name == "linearno" else OTHER_MODELS
    device = 1.0 if cuda else CORE_FACTOR / available_cores()
    return seconds * model * device * config.training.epochs / 60
