"""Errors of a test in a few numbers: of all fields, of each, and of the simplest answer there is."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from linearno.data.benchmark import PerSample, Splits, relative_l2
from linearno.training.predict import sample_errors
from linearno.training.tasks import Task


def summary(errors: Tensor) -> dict[str, Any]:
    return {
        "mean": errors.mean().item(),
        "median": errors.median().item(),
        "std": errors.std(correction=0).item(),
        "max": errors.max().item(),
        "unit": "dimensionless",
    }


def by_field(task: Task, predictions: Tensor, splits: Splits) -> dict[str, Any]:
    """Of several fields also the error of each: together the one with the largest numbers decides."""
    spec, found = splits.test.spec, {}
    if task.frame is not None or len(spec.fields) < 2:
        return {}
    for name, channels in spec.fields.items():
        own = [spec.outputs.index(channel) for channel in channels]
        train, test = (replace(part, targets=part.targets[..., own]) for part in (splits.train, splits.test))
        errors = sample_errors(relative_l2, predictions[..., own], test)
        mean = mean_field_error(Splits(train, test, splits.source))
        finite = errors[errors.isfinite()]
        if len(finite):
            found[name] = {**summary(finite), "mean_field": mean}
    return {"relative_l2_by_field": found}


def mean_field_error(splits: Splits, metric: PerSample = relative_l2) -> float:
    """The error of the simplest answer there is: the mean of the training targets, for every sample.

    Meshes of different sizes have no mean field: there it is the mean of each channel over all points.
    """
    targets = splits.train.targets
    mean = targets.nanmean(dim=0) if splits.train.spec.masked_outputs else targets.mean(dim=0)
    return sample_errors(metric, mean.expand_as(splits.test.targets), splits.test).mean().item()
