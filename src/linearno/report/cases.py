"""Best, median and worst case of a run: fields, rollouts, completions."""

import re

from linearno.data import metric_title
from linearno.report.formatting import capital, number
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
from linearno.viz.style import quantity

RANKS = ("best", "median", "worst")
TIME = ("t", "time")  # names of a coordinate that is no place
MOST_CHANNELS = 3  # outputs drawn of each case
FPS = 4.0
MOST_BYTES = 1_100_000  # of an animation inside a page, where it takes a third more


def cases(run: Run) -> Markup | None:
    """Best, median and worst case: one figure for each output, or one for a rollout."""
    found = run.cases
    if found is None:
        return None
    places = range(min(len(RANKS), len(found.sample)))
    if has_frames(run):
        figures = [_rollout(run, place, channel) for channel in shown_channels(run) for place in places]
        given = "The input is the last known frame; the" if isinstance(run.task, Rollout) else "The"
        lead = f"{given} first, the middle and the last predicted frame are shown."
    else:
        shown = range(min(MOST_CHANNELS, len(found.spec.outputs)))
        figures = [_case(run, found, place, channel) for channel in shown for place in places]
        lead = _left_out(found)
    which = f"The samples with the smallest, the median and the largest {metric_title(run.metric)}"
    words = f"{which} ({evaluated_on(run)}). {lead}"
    return join([tag("p", words.strip()), tag("div", *figures, class_="figures three")])


def motion(run: Run) -> Markup | None:
    """The rollout of the median case as an animation; named only where it would be too large for a page."""
    if not has_frames(run):
        return None
    assert run.cases is not None
    frames = list(rollout_frames(rollout_case(run, RANKS.index("median"), shown_channels(run)[-1])))
    content = gif_bytes(frames, fps=FPS)
    if len(content) > MOST_BYTES:
        return tag(
            "p", "Too large for a page: the command “linearno animate” writes it as a file.", class_="note"
        )
    which = _which(run, run.cases, RANKS.index("median"))
    height, width, _ = frames[0].shape
    caption = (
        f"{which}: all {len(frames)} predicted frames. Truth and prediction share one colour scale, the same "
        "in all frames; the error has its own. The command “linearno animate” writes it as a file."
    )
    alt = f"{which} of {run.name}, moving: truth, prediction and absolute error frame by frame"
    return image(data_uri(content), (width, height), alt=alt, caption=caption)


def has_frames(run: Run) -> bool:
    """Whether the run holds all cases of a task with frames, with what they are made from."""
    found = run.cases if run.task.frame is not None else None
    return found is not None and found.inputs is not None and len(found.sample) == len(RANKS)


def shown_channels(run: Run) -> list[int]:
    """Those of a frame that are drawn: of a rollout the first; else all that are no places of the points."""
    assert run.cases is not None
    spec = run.cases.spec
    if isinstance(run.task, Rollout):
        return [0]
    fields = [k for k, name in enumerate(spec.outputs[: run.task.frame]) if name not in spec.position_outputs]
    return fields[:MOST_CHANNELS] or [0]


def rollout_case(run: Run, place: int, channel: int = 0) -> RolloutCase:
    """One channel of the frames of one case."""
    task, found = run.task, run.cases
    assert task.frame is not None
    assert found is not None
    assert found.inputs is not None
    spec, own = found.spec, slice(channel, None, task.frame)
    name, unit = spec.outputs[channel], spec.unit(spec.outputs[channel])
    marches = isinstance(task, Rollout)
    known = -task.frame if marches else 0
    return RolloutCase(
        coords=found.coords[place],
        known=found.inputs[place][:, known],
        truth=found.targets[place][:, own],
        prediction=found.predictions[place][:, own],
        known_name=spec.inputs[known],
        names=spec.outputs[own],
        axis_labels=_axes(found),
        label=quantity(_field(name), unit),
        grid=spec.grid,
        known_label="" if marches else quantity(spec.inputs[0], spec.unit(spec.inputs[0])),
        places=found.places(found.targets, place),
        predicted_places=found.places(found.predictions, place),
    )


def _rollout(run: Run, place: int, channel: int) -> Markup:
    assert run.cases is not None
    which, case = _which(run, run.cases, place), rollout_case(run, place, channel)
    moved = (
        ""
        if case.places is None
        else " Points are drawn where they are, or are predicted to be; those far off are not seen."
    )
    return picture(
        rollout_figure(case, title=which),
        alt=f"{which} of {run.name}: input {case.known_name}; truth, prediction and absolute error of "
        f"frames from {case.names[0]} to {case.names[-1]}",
        caption=f"{which}, {_error(run, run.cases, place)}. Truth and prediction share one colour scale, "
        "that of the truth; the error has its own. A pointed end of a scale says that values go beyond it."
        f"{moved}",
    )


def field_case(found: Cases, place: int, channel: int) -> Case:
    """One output of one case, with the first of its inputs."""
    spec, name = found.spec, found.spec.outputs[channel]
    return Case(
        coords=found.coords[place],
        truth=found.targets[place][:, channel],
        prediction=found.predictions[place][:, channel],
        input=None if found.inputs is None else found.inputs[place][:, 0],
        axis_labels=_axes(found),
        input_label="" if found.inputs is None else quantity(spec.inputs[0], spec.unit(spec.inputs[0])),
        output_label=quantity(name, spec.unit(name)),
        grid=spec.grid,
        observed=None if found.observed is None else found.observed[place],
        over_time=len(spec.coords) == 2 and any(axis in TIME for axis in spec.coords),
        view=spec.plot_extent,
    )


def _case(run: Run, found: Cases, place: int, channel: int) -> Markup:
    name = found.spec.outputs[channel]
    which = _which(run, found, place)
    shared = "Truth and prediction share one colour scale; the error has its own."
    if found.observed is not None:
        shared = "Observations, truth and prediction share one colour scale; the error has its own."
    return picture(
        case_figure(field_case(found, place, channel), title=which),
        alt=f"{which} of {run.name}: input {_given(found)}; {name} as truth, prediction and absolute error",
        caption=f"{which}, {_error(run, found, place)}. {shared}",
    )


def _given(found: Cases) -> str:
    if found.observed is not None:
        return f"{found.observed.shape[1]:,} observed values of {len(found.coords[0]):,}"
    return "the points" if found.inputs is None else found.spec.inputs[0]


def _left_out(found: Cases) -> str:
    """What of the fields is not drawn."""
    words = []
    if len(found.spec.outputs) > MOST_CHANNELS:
        words.append(f"Of {len(found.spec.outputs)} outputs the first {MOST_CHANNELS} are shown.")
    if len(found.spec.inputs) > 1:
        words.append(f"Of {len(found.spec.inputs)} inputs the first is shown.")
    return " ".join(words)


def _axes(found: Cases) -> tuple[str, ...]:
    """Names of the coordinates, or of the places of points that move."""
    spec = found.spec
    if not spec.position_outputs:
        return tuple(quantity(axis, spec.unit(axis)) for axis in spec.coords)
    return tuple(
        quantity(_field(name), spec.unit(name)) for name in spec.position_outputs[: len(spec.coords)]
    )


def _field(name: str) -> str:
    """The name of a frame without its number."""
    return re.sub(r"\d+$", "", name) or name


def _which(run: Run, found: Cases, place: int) -> str:
    return f"{capital(RANKS[place])} case: {split(run)} sample {found.sample[place]}"


def _error(run: Run, found: Cases, place: int) -> str:
    return f"{metric_title(run.metric)} {number(float(found.error[place]))} (dimensionless)"
