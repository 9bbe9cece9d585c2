"""Several benchmarks on one page: a card for each, with its median case and a link to its own report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from linearno.core.atomic_io import write_bytes, write_text
from linearno.core.provenance import package_version
from linearno.report.cases import RANKS, field_case, has_frames, motion, shown_channels
from linearno.report.figures import small_png
from linearno.report.formatting import dig, duration, number, text
from linearno.report.html import Markup, tag
from linearno.report.page import document
from linearno.report.plots import picture
from linearno.report.run_folder import Run, read_run
from linearno.report.summary import model_name, reached, training_time
from linearno.viz import png_bytes, strip_figure
from linearno.viz.fields import around

LEAD = (
    "Each benchmark was solved by its own solver, and a small model learned from the solutions for a short "
    "time. Sets and models are small, and their settings were chosen by the very errors shown: this is what "
    "the library does, not how well the models do at full size. The pictures are of the unseen sample with "
    "the median error."
)


@dataclass(frozen=True)
class Shown:
    """A finished benchmark of a gallery."""

    name: str
    title: str
    task: str  # one sentence: what is predicted from what
    run: Path  # run folder
    report: Path  # the page on that run alone
    solving: float | None  # seconds


def write_gallery(out: Path, shown: Sequence[Shown], notes: Mapping[str, str]) -> None:
    """Write the page `out`, whole or not at all; `notes` say, by title, what else there is or went wrong."""
    cards = [_card(each, read_run(each.run, each.title), out.parent) for each in shown]
    remarks = [tag("p", tag("strong", title), f": {words}", class_="note") for title, words in notes.items()]
    footer = f"Written by linearno {package_version('linearno') or ''} from the run folders alone."
    page = document(
        "Gallery",
        tag("header", tag("p", "linearno gallery", class_="quiet"), tag("h1", "Gallery"), tag("p", LEAD)),
        tag("main", tag("div", *cards, class_="figures gallery"), *remarks),
        tag("footer", footer),
    )
    write_text(out, page)


def write_strips(folder: Path, shown: Sequence[Shown]) -> list[Path]:
    """The picture of each card as a small PNG with the benchmark's name."""
    paths = []
    for each in shown:
        if (figure := _strip(each, read_run(each.run, each.title))) is not None:
            paths.append(folder / f"{each.name}.png")
            write_bytes(paths[-1], small_png(png_bytes(figure)))
    return paths


def _card(shown: Shown, run: Run, folder: Path) -> Markup:
    link = tag("a", "Full report", href=shown.report.relative_to(folder).as_posix())
    parts = [
        tag("h2", shown.title),
        tag("p", shown.task),
        *_pictures(shown, run),
        reached(run),
        tag("p", _facts(shown, run), class_="quiet"),
        tag("p", link),
    ]
    return tag("article", *parts, class_="card", id=shown.name)


def _facts(shown: Shown, run: Run) -> str:
    """How much was solved, learned and tested, and how long it took."""
    points = len(run.cases.coords[RANKS.index("median")]) if run.cases else None
    learned, tested = dig(run.config, "data", "train"), run.metrics.get("samples")
    parameters, device = run.metrics.get("parameters"), run.metrics.get("device")
    return (
        f"{number(learned)} samples to learn from, {number(tested)} to test on, of {number(points)} points, "
        f"solved in {duration(shown.solving)}. {model_name(run)} with {number(parameters)} parameters, "
        f"trained in {training_time(run)} ({text(device)})."
    )


def _pictures(shown: Shown, run: Run) -> list[Markup]:
    figure = _strip(shown, run)
    if figure is None:
        return []
    frame = " Last frame." if has_frames(run) else ""
    where = ""
    if run.cases is not None and run.cases.spec.position_outputs:
        where = " Points are drawn where they are, or are predicted to be; those far off are not seen."
    still = picture(
        figure,
        alt=f"{shown.title}, median case: truth, prediction and absolute error",
        caption=f"The median unseen sample.{frame} Truth and prediction share one colour scale; the error "
        f"has its own.{where}",
    )
    moving = motion(run)
    return [still] if moving is None else [still, moving]


def _strip(shown: Shown, run: Run) -> Figure | None:
    """Truth, prediction and error of the median case; of frames the last one.

    Points that move are drawn where they are, those of the prediction where it says that they are.
    """
    found, place = run.cases, RANKS.index("median")
    if found is None:
        return None
    frame = run.task.frame
    channel = 0 if frame is None else len(found.spec.outputs) - frame + shown_channels(run)[-1]
    case, predicted = field_case(found, place, channel), found.places(found.predictions, place)
    if predicted is not None:
        true = found.points(place)
        view = case.view or around(true)
        case = replace(case, coords=true, predicted_coords=predicted[:, -1], view=view)
    return strip_figure(case)
