"""Figures of the best, median and worst case of a run: fields, rollouts, field reconstructions."""

import re

import numpy as np

from linearno.data import metric_title
from linearno.report.formatting import capitalise, number
from linearno.report.html import Markup, join, tag
from linearno.report.plots import image, picture
from linearno.report.run_folder import Cases, Run
from linearno.report.summary import evaluated_on, split
from linearno.training import Rollout
from linearno.viz import (
    Case,
    RolloutCase,
    case_figure,
    data_uri,
    gif_bytes,
    rollout_figure,
    rollout_frames,
)
from linearno.viz.style import label_with_unit

RANKS = ("best", "median", "worst")
TIME_COORDS = ("t", "time")  # names of a time coordinate
MAX_CHANNELS = 3  # outputs drawn of each case
FPS = 4.0
MAX_ANIMATION_BYTES = 1_100_000  # of an animation in a page, before the base64 encoding


def cases(run: Run) -> Markup | None:
    """Best, median and worst case: one figure for each output, or one for a rollout."""
    found = run.cases
    if found is None:
        return None
    indices = range(min(len(RANKS), len(found.sample)))
    if has_frames(run):
        figures = [
            _rollout_picture(run, index, channel) for channel in shown_channels(run) for index in indices
        ]
        subject = "The input is the last known frame; the" if isinstance(run.task, Rollout) else "The"
        note = f"{subject} first, the middle and the last predicted frame are shown."
    else:
        shown = range(min(MAX_CHANNELS, len(found.spec.outputs)))
        figures = [_case_picture(run, found, index, channel) for channel in shown for index in indices]
        note = _omitted_fields(found)
    samples = f"The samples with the smallest, the median and the largest {metric_title(run.metric)}"
    lead = f"{samples} ({evaluated_on(run)}). {note}"
    return join([tag("p", lead.strip()), tag("div", *figures, class_="figures three")])


def animation(run: Run) -> Markup | None:
    """The median case as an animation, or a note if the animation is too large for a page."""
    if not has_frames(run):
        return None
    assert run.cases is not None
    frames = list(rollout_frames(rollout_case(run, RANKS.index("median"), shown_channels(run)[-1])))
    content = gif_bytes(frames, fps=FPS)
    if len(content) > MAX_ANIMATION_BYTES:
        return tag(
            "p", "Too large for this page; the command “linearno animate” writes it as a file.", class_="note"
        )
    case_title = _case_title(run, run.cases, RANKS.index("median"))
    height, width, _ = frames[0].shape
    caption = (
        f"{case_title}: all {len(frames)} predicted frames. Truth and prediction share one colour scale, the "
        "same in all frames; the error has its own. The command “linearno animate” writes it as a file."
    )
    alt = f"{case_title} of {run.name}, moving: truth, prediction and absolute error frame by frame"
    return image(data_uri(content), (width, height), alt=alt, caption=caption)


def has_frames(run: Run) -> bool:
    """Whether the run predicts frames and contains all example cases with their inputs."""
    found = run.cases if run.task.frame is not None else None
    return found is not None and found.inputs is not None and len(found.sample) == len(RANKS)


def shown_channels(run: Run) -> list[int]:
    """Channels of a frame that are drawn: the first of a rollout, else all that are not point positions."""
    assert run.cases is not None
    spec = run.cases.spec
    if isinstance(run.task, Rollout):
        return [0]
    fields = [k for k, name in enumerate(spec.outputs[: run.task.frame]) if name not in spec.position_outputs]
    return fields[:MAX_CHANNELS] or [0]


def rollout_case(run: Run, index: int, channel: int = 0) -> RolloutCase:
    """One channel of the frames of one case; `index` is its position in `RANKS`."""
    task, found = run.task, run.cases
    assert task.frame is not None
    assert found is not None
    assert found.inputs is not None
    spec, own = found.spec, slice(channel, None, task.frame)
    name, unit = spec.outputs[channel], spec.unit(spec.outputs[channel])
    autoregressive = isinstance(task, Rollout)
    known = -task.frame if autoregressive else 0
    return RolloutCase(
        coords=found.coords[index],
        known=found.inputs[index][:, known],
        truth=found.targets[index][:, own],
        prediction=found.predictions[index][:, own],
        known_name=spec.inputs[known],
        names=spec.outputs[own],
        axis_labels=_axis_labels(found),
        label=label_with_unit(_field_name(name), unit),
        grid=spec.grid,
        known_label="" if autoregressive else label_with_unit(spec.inputs[0], spec.unit(spec.inputs[0])),
        positions=found.positions(found.targets, index),
        predicted_positions=found.positions(found.predictions, index),
    )


def _rollout_picture(run: Run, index: int, channel: int) -> Markup:
    assert run.cases is not None
    case_title, case = _case_title(run, run.cases, index), rollout_case(run, index, channel)
    moving_points = (
        ""
        if case.positions is None
        else " Points are drawn at their true or predicted positions; distant outliers are cut off."
    )
    return picture(
        rollout_figure(case, title=case_title),
        alt=f"{case_title} of {run.name}: input {case.known_name}; truth, prediction and absolute error of "
        f"frames from {case.names[0]} to {case.names[-1]}",
        caption=f"{case_title}, {_error_text(run, run.cases, index)}. Truth and prediction share one colour "
        "scale, that of the truth; the error has its own. A pointed end of a scale marks values beyond it."
        f"{moving_points}",
    )


def field_case(found: Cases, index: int, channel: int) -> Case:
    """One output of one case, with one of its inputs; `index` is its position in `RANKS`."""
    spec, name, given = found.spec, found.spec.outputs[channel], _shown_input(found)
    return Case(
        coords=found.coords[index],
        truth=found.targets[index][:, channel],
        prediction=found.predictions[index][:, channel],
        input=None if found.inputs is None else found.inputs[index][:, given],
        axis_labels=_axis_labels(found),
        input_label=""
        if found.inputs is None
        else label_with_unit(spec.inputs[given], spec.unit(spec.inputs[given])),
        output_label=label_with_unit(name, spec.unit(name)),
        grid=spec.grid,
        observed=None if found.observed is None else found.observed[index],
        over_time=len(spec.coords) == 2 and any(axis in TIME_COORDS for axis in spec.coords),
        view=spec.plot_extent,
        cells=None if found.cells is None else found.cells[index],
    )


def _case_picture(run: Run, found: Cases, index: int, channel: int) -> Markup:
    name = found.spec.outputs[channel]
    case_title = _case_title(run, found, index)
    shared = "Truth and prediction share one colour scale; the error has its own."
    if found.observed is not None:
        shared = "Observations, truth and prediction share one colour scale; the error has its own."
    return picture(
        case_figure(field_case(found, index, channel), title=case_title),
        alt=f"{case_title} of {run.name}: input {_input_name(found)}; {name} as truth, prediction and "
        "absolute error",
        caption=f"{case_title}, {_error_text(run, found, index)}. {shared}",
    )


def _input_name(found: Cases) -> str:
    """Description of the input for the alternative text of a figure."""
    if found.observed is not None:
        return f"{found.observed.shape[1]:,} observed values of {len(found.coords[0]):,}"
    return "the points" if found.inputs is None else found.spec.inputs[_shown_input(found)]


def _shown_input(found: Cases) -> int:
    """The first input that is not constant in a case; the first one if all are."""
    for channel in range(len(found.spec.inputs)):
        if found.inputs is not None and any(np.ptp(values[:, channel]) > 0 for values in found.inputs):
            return channel
    return 0


def _omitted_fields(found: Cases) -> str:
    """A note on outputs and inputs that are not drawn."""
    notes = []
    if len(found.spec.outputs) > MAX_CHANNELS:
        notes.append(f"Of {len(found.spec.outputs)} outputs the first {MAX_CHANNELS} are shown.")
    if len(found.spec.inputs) > 1:
        notes.append(f"Of {len(found.spec.inputs)} inputs {found.spec.inputs[_shown_input(found)]} is shown.")
    return " ".join(notes)


def _axis_labels(found: Cases) -> tuple[str, ...]:
    """Labels of the coordinates, or of the position outputs if points move."""
    spec = found.spec
    if not spec.position_outputs:
        return tuple(label_with_unit(axis, spec.unit(axis)) for axis in spec.coords)
    return tuple(
        label_with_unit(_field_name(name), spec.unit(name))
        for name in spec.position_outputs[: len(spec.coords)]
    )


def _field_name(name: str) -> str:
    """The name of a field without the number of its frame."""
    return re.sub(r"\d+$", "", name) or name


def _case_title(run: Run, found: Cases, index: int) -> str:
    sample = int(found.sample[index])
    name = run.names[sample] if sample < len(run.names) else f"{split(run)} sample {sample}"
    return f"{capitalise(RANKS[index])} case: {name}"


def _error_text(run: Run, found: Cases, index: int) -> str:
    return f"{metric_title(run.metric)} {number(float(found.error[index]))}"
