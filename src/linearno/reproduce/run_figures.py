"""Figures of the paper from run folders: maps of slices, rank, maps of errors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.data import FieldData
from linearno.inference.bundle import load
from linearno.initialization import open_splits
from linearno.report.run_folder import Run, read_run
from linearno.reproduce.pages import Captioned
from linearno.run_folder import open_run
from linearno.viz import dominant_slices_figure, rank_figure
from linearno.viz.fields import color_limits, field_figure
from linearno.viz.slices import RankSet

Folders = Mapping[tuple[str, str], Path]  # by row (the model) and column (the benchmark)
MEDIAN = 1  # of the best, median and worst case


def ranks_figure(folders: Folders) -> dict[str, Captioned]:
    """Rank of the attention kernel of each layer and head, in the median test sample."""
    found = {}
    for benchmark, models in _by_benchmark(folders).items():
        runs = {model: read_run(folder, model) for model, folder in models.items()}
        sets = [
            RankSet(model, place, run.cases.slices.rank, run.cases.slices.bound)
            for place, (model, run) in enumerate(runs.items())
            if run.cases is not None and run.cases.slices is not None
        ]
        if sets:
            found[benchmark] = Captioned(rank_figure(sets), f"{benchmark}: rank of φψᵀ, median test sample")
    return found


def slice_figures(folders: Folders) -> dict[str, Captioned]:
    """For each run the slice with the largest weight φ, and ψ, at each point, by layer and head."""
    found = {}
    for benchmark, models in _by_benchmark(folders).items():
        runs = {model: read_run(folder, model) for model, folder in models.items()}
        for letter, symbol in (("phi", "φ"), ("psi", "ψ")):
            for model, run in runs.items():
                if run.cases is None or run.cases.slices is None:
                    continue
                cases, dominant = run.cases, getattr(run.cases.slices, f"{letter}_dominant")
                coords = cases.points(_median(run))
                figure = dominant_slices_figure(
                    coords, dominant, grid=cases.spec.grid, view=cases.spec.plot_extent
                )
                text = (
                    f"{model} on {benchmark}, median test sample: slice of the largest {symbol} at each point"
                )
                found[f"{model}-{benchmark}-{letter}"] = Captioned(figure, text)
    return found


def error_map_figures(folders: Folders) -> dict[str, Captioned]:
    """For each run the absolute error of the first output, with one colour scale for each benchmark.

    All models predict the median test sample of the first one; without the data of the benchmark, each shows
    its own median sample.
    """
    found = {}
    for benchmark, models in _by_benchmark(folders).items():
        runs = {model: read_run(folder, model) for model, folder in models.items()}
        runs = {model: run for model, run in runs.items() if run.cases is not None}
        for model, figure in _error_maps({model: models[model] for model in runs}, runs).items():
            found[f"{model}-{benchmark}"] = figure._replace(
                caption=f"{model} on {benchmark}, {figure.caption}"
            )
    return found


def _error_maps(folders: Mapping[str, Path], runs: Mapping[str, Run]) -> dict[str, Captioned]:
    """Maps of one benchmark."""
    if not runs:
        return {}
    name, first = next(iter(runs.items()))
    shared = _shared_sample(folders[name], first)
    errors = {
        model: _own_error(run) if shared is None else _error(folders[model], shared)
        for model, run in runs.items()
    }
    limits, found = color_limits(*errors.values()), {}
    for model, run in runs.items():
        shown = run if shared is None else first
        assert shown.cases is not None
        spec = shown.cases.spec
        figure = field_figure(
            shown.cases.points(_median(shown)),
            errors[model],
            label=f"|error| of {spec.outputs[0]}",
            grid=spec.grid,
            view=spec.plot_extent,
            limits=limits,
        )
        text = "its median test sample" if shared is None else f"the median test sample of {name}"
        found[model] = Captioned(figure, text)
    return found


def _by_benchmark(folders: Folders) -> dict[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for (model, benchmark), folder in folders.items():
        found.setdefault(benchmark, {})[model] = folder
    return found


def _median(run: Run) -> int:
    """Place of the median case; a test set of one sample has one case."""
    assert run.cases is not None
    return min(MEDIAN, len(run.cases.coords) - 1)


def _shared_sample(folder: Path, run: Run) -> FieldData | None:
    """The median test sample of a run; None if its data are not here."""
    assert run.cases is not None
    try:
        test = open_splits(open_run(folder).data).test
    except UserError:
        return None
    return test.subset(torch.tensor([int(run.cases.sample[_median(run)])]))


def _error(folder: Path, sample: FieldData) -> Float[ndarray, "N"]:
    prediction = load(folder).predict_data(sample).cpu()
    return (prediction - sample.targets).abs().numpy().reshape(-1, prediction.shape[-1])[:, 0]


def _own_error(run: Run) -> Float[ndarray, "N"]:
    assert run.cases is not None
    place = _median(run)
    return np.abs(run.cases.predictions[place][:, 0] - run.cases.targets[place][:, 0])
