"""Figures of a page with captions that explain them."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.data import metric_title
from linearno.report.formatting import get_nested
from linearno.report.html import Markup, details, join, tag
from linearno.report.run_folder import Cases, Run
from linearno.report.summary import split
from linearno.training import Rollout
from linearno.viz import (
    ErrorSet,
    FrameErrors,
    RankSet,
    TrainingCurve,
    data_uri,
    dominant_slices_figure,
    error_figure,
    error_over_time_figure,
    rank_figure,
    slice_weights_figure,
    training_figure,
)

MAX_OPEN_PANELS = 16  # slice maps with more panels are collapsed


def picture(figure: Figure, *, alt: str, caption: str) -> Markup:
    """Embed a figure in the page, at its natural size or less."""
    width, height = (round(100 * inches) for inches in figure.get_size_inches())
    return image(data_uri(figure), (width, height), alt=alt, caption=caption)


def image(address: str, size: tuple[int, int], *, alt: str, caption: str) -> Markup:
    """An image of `size` (width, height) in pixels with its caption."""
    width, height = map(str, size)
    shown = tag("img", src=address, alt=alt, width=width, height=height)
    return tag("figure", shown, tag("figcaption", caption))


def training(runs: list[Run]) -> Markup | None:
    """Training curves of all runs that have some: models fitted in closed form have none."""
    trained = [(index, run) for index, run in enumerate(runs) if any(epoch.lr for epoch in run.history)]
    curves = [_curve(run, index) for index, run in trained]
    if not curves:
        return None
    caption = (
        "Above: mean training loss per sample of each epoch, on a log axis; lower is better. "
        "Below: learning rate of the last step of an epoch."
    )
    if any(curve.validation is not None for curve in curves):
        kinds = dict.fromkeys(metric_title(run.metric) for run in runs)
        caption += f" Dashed: mean {' or '.join(kinds)} of the validation samples."
    names = ", ".join(curve.name for curve in curves)
    return picture(
        training_figure(curves), alt=f"Loss and learning rate against epoch of {names}", caption=caption
    )


def _curve(run: Run, index: int) -> TrainingCurve:
    columns = np.array(
        [(r.epoch, r.loss, r.lr, np.nan if r.validation is None else r.validation) for r in run.history]
    )
    epochs, loss, lr, validation = columns.T
    used = np.isfinite(validation).any()
    return TrainingCurve(run.name, index, epochs.astype(int), loss, lr, validation if used else None)


def errors(runs: list[Run]) -> Markup | None:
    """A histogram for each metric."""
    figures = [_histogram(runs, metric) for metric in dict.fromkeys(run.metric for run in runs)]
    found = [figure for figure in figures if figure is not None]
    return join(found) if found else None


def _histogram(runs: list[Run], metric: str) -> Markup | None:
    sets = [
        ErrorSet(
            name=run.name,
            color=index,
            errors=run.errors,
            median=get_nested(run.metrics, metric, "median") or float(np.median(run.errors)),
            baseline=get_nested(run.metrics, "mean_field", metric),
        )
        for index, run in enumerate(runs)
        if run.metric == metric and run.errors is not None and len(run.errors)
    ]
    if not sets:
        return None
    title = metric_title(metric)
    caption = (
        f"Distribution of the {title} over samples. Dashed lines mark the median of a run, dotted lines the "
        "error of predicting the mean field. Further left is better; a long tail to the right is a few hard "
        "samples."
    )
    names = ", ".join(errors.name for errors in sets)
    figure = error_figure(sets, split=" and ".join(dict.fromkeys(map(split, runs))), metric=title)
    return picture(figure, alt=f"Histogram of the {title} of {names}", caption=caption)


def over_time(runs: list[Run]) -> Markup | None:
    """Error by predicted frame."""
    sets = [
        FrameErrors(run.name, index, run.frame_errors)
        for index, run in enumerate(runs)
        if run.frame_errors is not None
    ]
    if not sets:
        return None
    caption = "Mean relative L2 of each predicted frame."
    autoregressive = any(isinstance(run.task, Rollout) for run in runs)
    if autoregressive:
        caption += (
            " In a rollout each prediction is an input of the next one, so errors accumulate: the flatter "
            "the curve, the more stable the model."
        )
    names = ", ".join(each.name for each in sets)
    splits = " and ".join(dict.fromkeys(map(split, runs)))
    figure = error_over_time_figure(sets, split=splits, autoregressive=autoregressive)
    return picture(figure, alt=f"Relative L2 of each step of {names}", caption=caption)


def rank(runs: list[Run]) -> Markup | None:
    """Rank of the attention kernels of all runs."""
    sets = [
        RankSet(run.name, index, run.cases.slices.rank, run.cases.slices.bound)
        for index, run in enumerate(runs)
        if run.cases is not None and run.cases.slices is not None
    ]
    if not sets:
        return None
    caption = (
        "Rank of the attention kernel φψᵀ in the median case: the number of independent channels by which a "
        "head exchanges information between points. Dots are heads, the line is the mean over heads, the "
        "dashed line is the upper bound M, the number of slices. Ranks far below M mean redundant slices."
    )
    names = ", ".join(each.name for each in sets)
    return picture(
        rank_figure(sets), alt=f"Rank of the attention kernel by layer of {names}", caption=caption
    )


def slices(run: Run) -> Markup | None:
    """Maps of φ and ψ, collapsed if there are many."""
    if run.cases is None or run.cases.slices is None:
        return None
    found = run.cases.slices
    lead = (
        f"Attention passes through M = {found.bound} slices: ψ gathers the points into slices, φ scatters "
        "the slices to the points. Rows are layers, columns are heads; the points are those of the median "
        f"case. The rank of φψᵀ is {found.rank.mean():.3g} on average over heads, and at most {found.bound}."
    )
    maps = {
        "φ": (found.phi_dominant, found.phi_slice, "reads"),
        "ψ": (found.psi_dominant, found.psi_slice, "contributes"),
    }
    sections = (_maps(run.name, run.cases, letter, *arrays) for letter, arrays in maps.items())
    return join([tag("p", lead), *sections])


def _maps(run: str, found: Cases, letter: str, dominant: ndarray, weights: ndarray, verb: str) -> Markup:
    median = min(1, len(found.coords) - 1)
    coords, grid = found.points(median), found.spec.grid
    mesh: dict[str, Any] = {"view": found.spec.plot_extent, "cells": found.cells and found.cells[median]}
    layers, heads, _ = weights.shape
    side = "from" if verb == "reads" else "to"
    heads_of_run = f"of every head and layer of {run}"
    pictures = [
        picture(
            dominant_slices_figure(coords, dominant, grid=grid, **mesh),
            alt=f"Dominant slice of {letter} {heads_of_run}",
            caption=f"The slice that a point {verb} most {side}, by colour. Colours are assigned in each "
            "panel by the number of points; the least frequent slices share grey.",
        ),
        picture(
            slice_weights_figure(coords, weights, grid=grid, **mesh),
            alt=f"Weight {letter} of the most used slice {heads_of_run}",
            caption=f"The weight {letter} of the most used slice of the head. Each panel has "
            "its own scale, from zero (dark) to its largest weight (bright).",
        ),
    ]
    title = f"{letter}: the slices that each point {verb} {side} ({layers} layers × {heads} heads)"
    return details(
        title, tag("div", *pictures, class_="figures two"), open_=layers * heads <= MAX_OPEN_PANELS
    )
