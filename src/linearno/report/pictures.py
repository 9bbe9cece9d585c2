"""The figures of a page, each with a sentence that says how to read it."""

import numpy as np
from matplotlib.figure import Figure
from numpy import ndarray

from linearno.report.markup import Markup, details, join, tag
from linearno.report.read import Cases, Run
from linearno.report.summary import evaluated_on, split
from linearno.report.words import capital, dig, number
from linearno.viz import (
    Case,
    ErrorSet,
    RankSet,
    TrainingCurve,
    case_figure,
    data_uri,
    dominant_slices_figure,
    error_figure,
    rank_figure,
    slice_weights_figure,
    training_figure,
)
from linearno.viz.style import quantity

RANKS = ("best", "median", "worst")
MOST_CHANNELS = 3  # outputs drawn of each case
FEW_PANELS = 16  # more are folded


def picture(figure: Figure, *, alt: str, caption: str) -> Markup:
    """The figure inside the page, on white, at its natural size or less."""
    width, height = (str(round(100 * inches)) for inches in figure.get_size_inches())
    image = tag("img", src=data_uri(figure), alt=alt, width=width, height=height)
    return tag("figure", image, tag("figcaption", caption))


def training(runs: list[Run]) -> Markup | None:
    curves = [_curve(run, place) for place, run in enumerate(runs) if run.history]
    if not curves:
        return None
    caption = (
        "Above: training loss of each epoch, mean per sample, on a log axis; lower is better. "
        "Below: learning rate of the epoch's last step."
    )
    if any(curve.validation is not None for curve in curves):
        caption += " Dashes: mean relative L2 (dimensionless) of held-out training samples."
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
    sets = [
        ErrorSet(
            name=run.name,
            color=place,
            errors=run.errors,
            median=dig(run.metrics, "relative_l2", "median") or float(np.median(run.errors)),
            baseline=dig(run.metrics, "mean_field", "relative_l2"),
        )
        for place, run in enumerate(runs)
        if run.errors is not None and len(run.errors)
    ]
    if not sets:
        return None
    caption = (
        "How many samples have which error. Dashes mark the median of a run, dots the error of always "
        "predicting the mean field. Further left is better; a long tail to the right is a few hard samples."
    )
    names = ", ".join(each.name for each in sets)
    figure = error_figure(sets, split=" and ".join(dict.fromkeys(map(split, runs))))
    return picture(figure, alt=f"Histogram of the relative L2 error of {names}", caption=caption)


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


def cases(run: Run) -> Markup | None:
    """Best, median and worst case, one figure for each output."""
    found = run.cases
    if found is None:
        return None
    shown = found.spec.outputs[:MOST_CHANNELS]
    lead = (
        f"The samples with the smallest, the median and the largest relative L2 error ({evaluated_on(run)})."
    )
    if len(shown) < len(found.spec.outputs):
        lead += f" Of {len(found.spec.outputs)} outputs the first {len(shown)} are shown."
    if len(found.spec.inputs) > 1:
        lead += f" Of {len(found.spec.inputs)} inputs the first is shown."
    figures = [
        _case(run, found, place, channel)
        for channel in range(len(shown))
        for place in range(min(len(RANKS), len(found.sample)))
    ]
    return join([tag("p", lead), tag("div", *figures, class_="figures three")])


def _case(run: Run, found: Cases, place: int, channel: int) -> Markup:
    spec, name = found.spec, found.spec.outputs[channel]
    drawn = Case(
        coords=found.coords[place],
        truth=found.targets[place, :, channel],
        prediction=found.predictions[place, :, channel],
        input=None if found.inputs is None else found.inputs[place, :, 0],
        axis_labels=tuple(quantity(axis, spec.unit(axis)) for axis in spec.coords),
        input_label="" if found.inputs is None else quantity(spec.inputs[0], spec.unit(spec.inputs[0])),
        output_label=quantity(name, spec.unit(name)),
        grid=spec.grid,
    )
    which = f"{capital(RANKS[place])} case: {split(run)} sample {found.sample[place]}"
    error = f"relative L2 {number(float(found.error[place]))} (dimensionless)"
    given = "the points" if found.inputs is None else spec.inputs[0]
    return picture(
        case_figure(drawn, title=which),
        alt=f"{which} of {run.name}: input {given}; {name} as truth, prediction and absolute error",
        caption=f"{which}, {error}. Truth and prediction share one colour scale; the error has its own.",
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
    coords, grid = found.coords[min(1, len(found.coords) - 1)], found.spec.grid
    layers, heads, _ = weights.shape
    side = "from" if verb == "reads" else "to"
    whose = f"of every head and layer of {run}"
    pictures = [
        picture(
            dominant_slices_figure(coords, dominant, grid=grid),
            alt=f"Dominant slice of {letter} {whose}",
            caption=f"Which slice a point {verb} most {side}: one colour, one slice. Colours are chosen anew "
            "in each panel, the largest region first; where slices are very many, the smallest share grey.",
        ),
        picture(
            slice_weights_figure(coords, weights, grid=grid),
            alt=f"Weight {letter} of the most used slice {whose}",
            caption=f"The weight {letter} (dimensionless) of one slice, the most used of the head. Each "
            "panel has its own scale: dark is zero, bright its largest weight.",
        ),
    ]
    title = f"{letter}: what each point {verb} {side} ({layers} layers × {heads} heads)"
    return details(title, tag("div", *pictures, class_="figures two"), open_=layers * heads <= FEW_PANELS)
