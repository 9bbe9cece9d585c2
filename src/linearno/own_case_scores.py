"""Errors of a user's own simulations: integral quantities, and the nearest training case for comparison."""

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearno.core.atomic_io import write_text
from linearno.meshes import CasesConfig
from linearno.meshes.cases import CaseSplits
from linearno.training import parallel
from linearno.training.nearest_case import predict_nearest
from linearno.training.predict import errors_by_field


def own_case_scores(
    data: CasesConfig, splits: CaseSplits, predictions: Tensor, folder: Path
) -> dict[str, Any]:
    """Entries of metrics.json for own simulations; the values of the quantities go to quantities.csv.

    Args:
        data: what the simulations are.
        splits: of the run.
        predictions: of the test cases, in physical units.
        folder: run folder.
    """
    scores: dict[str, Any] = {
        "nearest_case": errors_by_field(predict_nearest(splits.train, splits.test), splits)
    }
    if data.quantities:
        scores["quantities"] = quantity_errors(data, splits, predictions, folder)
    return scores


def quantity_errors(
    data: CasesConfig, splits: CaseSplits, predictions: Tensor, folder: Path
) -> dict[str, dict[str, float]]:
    """Errors of the integral quantities of the test cases; their values are written to quantities.csv."""
    test, rows, values = splits.test, [], []
    for i, weights in enumerate(splits.quantities):
        truth, predicted = (
            replace(test, targets=fields).batch(torch.tensor([i])).targets[0].double().cpu()
            for fields in (test.targets, predictions.to(test.targets.device))
        )
        row = []
        for name, quantity in data.quantities.items():
            channel = test.spec.outputs.index(quantity.channel)
            row += [
                float(quantity.factor * (weights[name] @ part[:, channel])) for part in (truth, predicted)
            ]
        values.append(row)
        rows.append(",".join([splits.test_names[i], *(f"{value:.9g}" for value in row)]))
    heads = ["case", *(f"{name}{end}" for name in data.quantities for end in ("", "_predicted"))]
    if parallel.is_main_process():
        write_text(folder / "quantities.csv", "\n".join([",".join(heads), *rows, ""]))
    found = {}
    for name, pair in zip(data.quantities, torch.tensor(values).T.split(2), strict=True):
        error, size = (pair[1] - pair[0]).abs().mean().item(), pair[0].abs().mean().item()
        found[name] = {
            "mean_error": error,
            "mean_size": size,
            "relative_error": error / size if size else nan,
        }
    return found
