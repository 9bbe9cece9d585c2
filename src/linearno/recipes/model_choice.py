"""Choose the model for a user's cases on validation cases: POD-GP where it applies, or LinearNO."""

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearno.core.atomic_io import read_json, write_json
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data import FieldData, Splits
from linearno.data.benchmark import relative_l2
from linearno.inference.bundle import Bundle, load
from linearno.inference.intervals import Intervals, calibrate, coverage
from linearno.initialization import untrained
from linearno.meshes import CasesConfig
from linearno.nn.protocol import Probabilistic
from linearno.recipes.cases import MAX_BATCH, TARGET_BATCH_POINTS, cases_run
from linearno.run_config import RunConfig, apply_changes
from linearno.run_folder import training_seconds
from linearno.training.closed_form import fit_closed_form
from linearno.training.nearest_case import predict_nearest
from linearno.training.predict import predict, sample_errors
from linearno.training.setup import split_validation
from linearno.training.trainer import Trainer

VALIDATION_SHARE = 0.2  # of the training cases
MAX_VALIDATION = 50
MIN_CASES = 4  # for a choice by validation
GOOD_ENOUGH = 0.01  # mean relative error by field, with which the network is not tried
FAR_BETTER = 5  # times smaller than the error of the best baseline: likewise
MAX_CPU_POINTS = 2048  # drawn of each mesh in an epoch on a CPU
MIN_EPOCHS, MIN_PATIENCE, PATIENCE_SHARE = 20, 20, 0.25
TIMED_STEPS = 3
FOLDS = 5  # of the cross-validation of POD-GP
CHOICE = "choice.json"
CLASSICAL = "pod-gp"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """What was tried on the validation cases.

    Args:
        name: "mean field", "nearest case", or the registered name of a model.
        errors: mean relative L2 error of each field.
        seconds: that fitting took.
        note: why it was not tried.
    """

    name: str
    errors: dict[str, float]
    seconds: float = 0.0
    note: str = ""

    @property
    def error(self) -> float:
        """Mean over the fields; infinite if it was not tried."""
        return mean_error(self.errors)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "errors": self.errors, "seconds": self.seconds, "note": self.note}


def mean_error(errors: dict[str, float]) -> float:
    """Mean over the fields whose error is known; infinite if none is."""
    known = [error for error in errors.values() if error == error]
    return sum(known) / len(known) if known else float("inf")


def validation_count(cases: int) -> int:
    """Number of training cases that are held out to choose by."""
    return 0 if cases < MIN_CASES else max(1, min(MAX_VALIDATION, round(VALIDATION_SHARE * cases)))


def try_baselines(splits: Splits, seed: int) -> list[Candidate]:
    """Errors of mean field and nearest case on the validation cases."""
    train, validation = _held_out(splits, seed)
    mean = train.targets.nanmean(dim=0).expand_as(validation.targets)
    found = [Candidate("mean field", field_errors(mean, validation))]
    began = time.perf_counter()
    nearest = predict_nearest(train, validation)
    seconds = time.perf_counter() - began
    return [*found, Candidate("nearest case", field_errors(nearest, validation), seconds)]


def try_classical(data: CasesConfig, splits: Splits, seed: int) -> Candidate:
    """Errors of POD-GP on the validation cases; a note if it does not apply."""
    if splits.train.offsets is not None:
        return Candidate(CLASSICAL, {}, note="the cases do not share a mesh")
    train, validation = _held_out(splits, seed)
    config = cases_run(data, CLASSICAL, splits)
    try:
        bundle, setup = untrained(config, splits._replace(train=train))
        with tempfile.TemporaryDirectory() as scratch:
            began = time.perf_counter()
            fit_closed_form(setup, device=torch.device("cpu"), folder=Path(scratch))
            seconds = time.perf_counter() - began
    except UserError as error:
        return Candidate(CLASSICAL, {}, note=str(error))
    prediction = predict(bundle.model, bundle.scaler, validation, batch=1, device=torch.device("cpu"))
    return Candidate(CLASSICAL, field_errors(prediction, validation), seconds)


def cross_validated(data: CasesConfig, splits: Splits, seed: int) -> Intervals | None:
    """Prediction intervals of POD-GP, from its errors on each training case when that was left out."""
    config, folds = cases_run(data, CLASSICAL, splits), min(FOLDS, len(splits.train))
    groups = torch.tensor(splits.train.groups or range(len(splits.train)))
    order = torch.randperm(int(groups.max()) + 1, generator=torch_generator(seed))
    errors, deviations = [], []
    for fold in range(folds):
        out = torch.isin(groups, order[fold::folds])
        held, rest = out.nonzero()[:, 0], (~out).nonzero()[:, 0]
        if not len(held) or not len(rest):
            continue
        try:
            bundle, setup = untrained(config, splits._replace(train=splits.train.subset(rest)))
            with tempfile.TemporaryDirectory() as scratch:
                fit_closed_form(setup, device=torch.device("cpu"), folder=Path(scratch))
        except UserError as error:
            log.warning("no prediction intervals: %s", error)
            return None
        part = splits.train.subset(held)
        mean, std = bundle.predict_with_std(part.inputs, part.coords)
        errors += list(mean - part.targets)
        deviations += list(std)
    return calibrate(errors, deviations, splits.train.targets.flatten(0, -2).std(dim=0))


def calibrate_run(folder: Path, splits: Splits, intervals: Intervals | None, seed: int) -> None:
    """Store prediction intervals in a bundle, and their coverage of the test cases in its metrics.

    Args:
        folder: of the run.
        splits: its data.
        intervals: from cross-validation; None: from the validation cases of the model.
        seed: of the split.
    """
    bundle = load(folder)
    if intervals is None:
        part = validation_part(splits, seed)
        mean, std = _mean_and_std(bundle, part)
        errors = _cases_of(part, mean - part.targets)
        deviations = None if std is None else _cases_of(part, std)
        intervals = calibrate(errors, deviations, bundle.scaler.outputs.std)
    replace(bundle, intervals=intervals).save(folder)
    test = splits.test
    mean, std = _mean_and_std(bundle, test)
    shares = coverage(mean - test.targets, intervals.half_widths(std, mean))
    metrics = read_json(folder / "metrics.json", how="train the model again")
    metrics["coverage"] = {
        "level": intervals.level,
        **dict(zip(test.spec.outputs, shares.tolist(), strict=True)),
    }
    write_json(folder / "metrics.json", metrics)


def _mean_and_std(bundle: Bundle, data: FieldData) -> tuple[Tensor, Tensor | None]:
    """Predictions for every sample, with the standard deviation if the model has one."""
    if isinstance(bundle.model, Probabilistic):
        return bundle.predict_data_with_std(data)
    return bundle.predict_data(data), None


def _cases_of(data: FieldData, values: Tensor) -> list[Tensor]:
    """Values (N, C) of each case."""
    if data.offsets is None:
        return list(values)
    return list(values.split(data.offsets.diff().tolist()))


def _held_out(splits: Splits, seed: int) -> tuple[FieldData, FieldData]:
    train, validation = split_validation(splits.train, validation_count(len(splits.train)), seed)
    if validation is None:
        raise UserError(f"{len(splits.train)} training cases are too few to choose a model; set model.name")
    return train, validation


def validation_part(splits: Splits, seed: int) -> FieldData:
    """The cases that the choice is made by, which a network holds out too."""
    return _held_out(splits, seed)[1]


def field_errors(prediction: Tensor, truth: FieldData) -> dict[str, float]:
    """Mean relative L2 error of each field over the samples with a field that is not 0 everywhere."""
    spec, found = truth.spec, {}
    for name, channels in spec.fields.items():
        own = [spec.outputs.index(channel) for channel in channels]
        part = replace(truth, spec=_with_outputs(truth, channels), targets=truth.targets[..., own])
        errors = sample_errors(relative_l2, prediction[..., own].cpu(), part)
        finite = errors[errors.isfinite()]
        if len(finite):
            found[name] = finite.mean().item()
    return found


def _with_outputs(data: FieldData, channels: tuple[str, ...]) -> Any:
    masked = tuple(name for name in data.spec.masked_outputs if name in channels)
    return data.spec.model_copy(update={"outputs": channels, "masked_outputs": masked})


def choose(candidates: list[Candidate]) -> tuple[Candidate, str]:
    """The model with the smallest error, and why."""
    models = [one for one in candidates if one.name not in ("mean field", "nearest case") and one.errors]
    best = min(models, key=lambda one: one.error)
    nearest = next(one for one in candidates if one.name == "nearest case")
    others = ", ".join(f"{one.name} {one.error:.3g}" for one in candidates if one is not best and one.errors)
    reason = f"{best.name} has the smallest mean error on the validation cases, {best.error:.3g} ({others})"
    if best.error >= nearest.error:
        reason += "; it is no better than the nearest case: more cases or longer training are needed"
    return best, reason


def is_good_enough(candidate: Candidate, baselines: list[Candidate]) -> bool:
    """Whether a model in closed form is so good that a network is not worth its training."""
    nearest = min(one.error for one in baselines)
    return candidate.error <= GOOD_ENOUGH or candidate.error <= nearest / FAR_BETTER


def network_run(
    data: CasesConfig,
    splits: Splits,
    device: torch.device,
    minutes: float,
    members: int = 1,
    changes: Sequence[str] = (),
) -> RunConfig:
    """LinearNO with validation, and as many epochs as fit into the time, measured by a few steps.

    The members of an ensemble share the time; `changes` are those of a search.
    """
    config = apply_changes(cases_run(data, splits=splits), list(changes))
    count = validation_count(len(splits.train))
    points = config.training.points
    if device.type == "cpu" and splits.train.coords.shape[-2] > MAX_CPU_POINTS:
        points = MAX_CPU_POINTS
    settings: dict[str, Any] = {"validation": count, "points": points, "members": members}
    if points is not None:
        cases = len(splits.train) - count
        settings["batch"] = max(1, min(MAX_BATCH, TARGET_BATCH_POINTS // points, cases // 6))
    training = config.training.model_copy(update=settings)
    config = config.model_copy(update={"training": training})
    per_epoch = seconds_per_epoch(config, splits, device)
    epochs = max(MIN_EPOCHS, min(training.epochs, int(60 * minutes / per_epoch / members)))
    patience = max(MIN_PATIENCE, round(PATIENCE_SHARE * epochs)) if count else 0
    training = training.model_copy(update={"epochs": epochs, "patience": patience})
    return config.model_copy(update={"training": training})


def seconds_per_epoch(config: RunConfig, splits: Splits, device: torch.device) -> float:
    """Seconds that an epoch with its validation takes, from a few steps with fresh weights."""
    _, setup = untrained(config, splits)
    setup = replace(setup, config=setup.config.model_copy(update={"capture": False}))
    trainer, config_ = Trainer(setup, device), setup.config
    index = torch.arange(min(config_.batch * config_.accumulate, len(setup.train)))
    index = index if trainer.draws_on_host else index.to(device)
    with trainer.active():
        trainer.step(index)
        began = time.perf_counter()
        for _ in range(TIMED_STEPS):
            trainer.step(index)
        _wait(device)
        per_step = (time.perf_counter() - began) / TIMED_STEPS
    steps = -(-len(setup.train) // len(index))
    if setup.validation is None:
        return steps * per_step
    began = time.perf_counter()
    first = setup.validation.subset(torch.arange(1))
    predict(setup.model, setup.scaler, first, batch=1, device=device, task=setup.task, seed=setup.seed)
    _wait(device)
    return steps * per_step + (time.perf_counter() - began) * len(setup.validation)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trained_candidate(folder: Path, splits: Splits, seed: int, device: torch.device) -> Candidate:
    """Errors of a trained network on the validation cases, which it has held out."""
    validation = validation_part(splits, seed)
    bundle = load(folder, str(device))
    name = bundle.recipe.rpartition("/")[2]
    if members := len(bundle.members):
        name = f"{name}, {members} members"
    errors = field_errors(bundle.predict_data(validation), validation)
    return Candidate(name, errors, training_seconds(folder))


def write_choice(
    folder: Path, candidates: list[Candidate], chosen: str, reason: str, tuning: dict[str, Any] | None = None
) -> None:
    """Write `choice.json` into the folder of the chosen run, with the search for settings, if any."""
    table = [one.as_dict() for one in candidates]
    facts = {"chosen": chosen, "reason": reason, "validation": table}
    write_json(folder / CHOICE, facts | ({} if tuning is None else {"tuning": tuning}))
