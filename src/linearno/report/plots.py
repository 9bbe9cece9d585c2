"""The figures of a page, each with a sentence that says how to read it."""

import numpy as np
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.data import metric_title
from linearno.report.formatting import dig
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

FEW_PANELS = 16  # more are folded


def picture(figure: Figure, *, alt: str, caption: str) -> Markup:
    """The figure inside the page, on white, at its natural size or less."""
    width, height = (round(100 * inches) for inches in figure.get_size_inches())
    return image(data_uri(figure), (width, height), alt=alt, caption=caption)


def image(address: str, size: tuple[int, int], *, alt: str, caption: str) -> Markup:
    """An image of so many pixels across and down, with a sentence on how to read it."""
    width, height = map(str, size)
    shown = tag("img", src=address, alt=alt, width=width, height=height)
    return tag("figure", shown, tag("figcaption", caption))


def training(runs: list[Run]) -> Markup | None:
    trained = [(place, run) for place, run in enumerate(runs) if any(epoch.lr for epoch in run.history)]
    curves = [_curve(run, place) for place, run in trained]  # not of models fitted in closed form
    if not curves:
        return None
    caption = (
        "Above: training loss of each epoch, mean per sample, on a log axis; lower is better. "
        "Below: learning rate of the epoch's last step."
    )
    if any(curve.validation is not None for curve in curves):
        kinds = dict.fromkeys(metric_title(run.metric) for run in runs)
        caption += f" Dashes: mean {' or '.join(kinds)} (dimensionless) of held-out training samples."
    names = ", ".join(curve.name for curve in curves)
    return picture(
        training_figure(curves), alt=f"Loss and learning rate against epoch of {names}", caption=caption
    )


def _curve(run: Run, place: int) -> TrainingCurve:
    columns = np.array(
        [(r.epoch, r.loss, r.lr, np.nan if r.validation is None else r.validation) for r in run.history]
    )
    epochs, loss, lr, validation = columns.T
    used = np.isfinite(validation).any()
    return TrainingCurve(run.name, place, epochs.astype(int), loss, lr, validation if used else None)


def errors(runs: list[Run]) -> Markup | None:
    """A histogram for each kind of error: one axis cannot hold two."""
    figures = [_histogram(runs, metric) for metric in dict.fromkeys(run.metric for run in runs)]
    found = [figure for figure in figures if figure is not None]
    return join(found) if found else None


def _histogram(runs: list[Run], metric: str) -> Markup | None:
    sets = [
        ErrorSet(
            name=run.name,
            color=place,
            errors=run.errors,
            median=dig(run.metrics, metric, "median") or float(np.median(run.errors)),
            baseline=dig(run.metrics, "mean_field", metric),
        )
        for place, run in enumerate(runs)
        if run.metric == metric and run.errors is not None and len(run.errors)
    ]
    if not sets:
        return None
    words = metric_title(metric)
    caption = (
        f"How many samples have which {words}. Dashes mark the median of a run, dots the error of always "
        "predicting the mean field. Further left is better; a long tail to the right is a few hard samples."
    )
    names = ", ".join(each.name for each in sets)
    figure = error_figure(sets, split=" and ".join(dict.fromkeys(map(split, runs))), metric=words)
    return picture(figure, alt=f"Histogram of the {words} of {names}", caption=caption)


def over_time(runs: list[Run]) -> Markup | None:
    """How the error changes from frame to frame."""
    sets = [
        FrameErrors(run.name, place, run.by_frame)
        for place, run in enumerate(runs)
        if run.by_frame is not None
    ]
    if not sets:
        return None
    caption = "Mean relative L2 (dimensionless) of each predicted frame."
    marches = any(isinstance(run.task, Rollout) for run in runs)
    if marches:
        caption += (
            " In a rollout every prediction is an input of the next: errors add up, and the flatter a curve, "
            "the more stable the model."
        )
    names = ", ".join(each.name for each in sets)
    splits = " and ".join(dict.fromkeys(map(split, runs)))
    figure = error_over_time_figure(sets, split=splits, marches=marches)
    return picture(figure, alt=f"Relative L2 of each step of {names}", caption=caption)


def rank(runs: list[Run]) -> Markup | None:
    sets = [
        RankSet(run.name, place, run.cases.slices.rank, run.cases.slices.bound)
        for place, run in enumerate(runs)
        if run.cases is not None and run.cases.slices is not None
    ]
    if not sets:
        return None
    caption = (
        "Rank of the attention kernel φψᵀ in the median case: in how many independent ways a head carries "
        "information between points. A dot is a head, the line is the mean over heads, dashes are the most "
        "there can be: M, the number of slices. Ranks far below M mean that slices repeat each other."
    )
    names = ", ".join(each.name for each in sets)
    return picture(
        rank_figure(sets), alt=f"Rank of the attention kernel by layer of {names}", caption=caption
    )


def slices(run: Run) -> Markup | None:
    """Maps of φ and ψ, folded where there are many."""
    if run.cases is None or run.cases.slices is None:
        return None
    found = run.cases.slices
    lead = (
        f"Attention passes through M = {found.bound} slices: ψ gathers the points into slices, φ says how "
        "each point reads from them. Rows are layers, columns are heads; the points are those of the median "
        f"case. The rank of φψᵀ is {found.rank.mean():.3g} on average over heads, and at most {found.bound}."
    )
    maps = {
        "φ": (found.phi_dominant, found.phi_slice, "reads"),
        "ψ": (found.psi_dominant, found.psi_slice, "gives"),
    }
    folded = (_maps(run.name, run.cases, letter, *arrays) for letter, arrays in maps.items())
    return join([tag("p", lead), *folded])


def _maps(run: str, found: Cases, letter: str, dominant: ndarray, weights: ndarray, verb: str) -> Markup:
    coords, grid = found.points(min(1, len(found.coords) - 1)), found.spec.grid
    view = found.spec.plot_extent
    layers, heads, _ = weights.shape
    side = "from" if verb == "reads" else "to"
    whose = f"of every head and layer of {run}"
    pictures = [
        picture(
            dominant_slices_figure(coords, dominant, grid=grid, view=view),
            alt=f"Dominant slice of {letter} {whose}",
            caption=f"Which slice a point {verb} most {side}: one colour, one slice. Colours are chosen anew "
            "in each panel, the largest region first; where slices are very many, the smallest share grey.",
        ),
        picture(
            slice_weights_figure(coords, weights, grid=grid, view=view),
            alt=f"Weight {letter} of the most used slice {whose}",
            caption=f"The weight {letter} (dimensionless) of one slice, the most used of the head. Each "
            "panel has its own scale: dark is zero, bright its largest weight.",
        ),
    ]
    title = f"{letter}: what each point {verb} {side} ({layers} layers × {heads} heads)"
    return details(title, tag("div", *pictures, class_="figures two"), open_=layers * heads <= FEW_PANELS)
