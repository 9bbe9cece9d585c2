"""Page on several benchmarks: a card for each, with its median case and a link to its report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from linearno.core.atomic_io import write_bytes, write_text
from linearno.core.provenance import package_version
from linearno.report.bodies import median_pressure_figure
from linearno.report.cases import RANKS, animation, field_case, has_frames, shown_channels
from linearno.report.figures import small_png
from linearno.report.formatting import duration, get_nested, number, text
from linearno.report.html import Markup, tag
from linearno.report.page import document
from linearno.report.plots import picture
from linearno.report.run_folder import Run, read_run
from linearno.report.summary import main_result, model_name, training_time
from linearno.viz import png_bytes, strip_figure
from linearno.viz.fields import view_around

LEAD = (
    "The data of each benchmark were generated with its solver, and a small model was trained on them for a "
    "short time. Data sets and models are small and were tuned on the errors shown: the page demonstrates "
    "the library, not the accuracy of the models at full size. Figures show the test sample with the median "
    "error."
)


@dataclass(frozen=True)
class GalleryCard:
    """A finished benchmark of the gallery.

    Args:
        name: name of the benchmark, also the anchor of its card.
        title: title of the card.
        task: one sentence: what is predicted from what.
        run: run folder.
        report: page on that run.
        solver_seconds: time spent on generating the data, if known.
    """

    name: str
    title: str
    task: str
    run: Path
    report: Path
    solver_seconds: float | None


def write_gallery(out: Path, shown: Sequence[GalleryCard], notes: Mapping[str, str]) -> None:
    """Write the page `out` with a card for each benchmark, and notes by title."""
    cards = [_card(card, read_run(card.run, card.title), out.parent) for card in shown]
    remarks = [tag("p", tag("strong", title), f": {note}", class_="note") for title, note in notes.items()]
    footer = f"Written by linearno {package_version('linearno') or ''} from the run folders."
    page = document(
        "Gallery",
        tag("header", tag("p", "linearno gallery", class_="quiet"), tag("h1", "Gallery"), tag("p", LEAD)),
        tag("main", tag("div", *cards, class_="figures gallery"), *remarks),
        tag("footer", footer),
    )
    write_text(out, page)


def write_strips(folder: Path, shown: Sequence[GalleryCard]) -> list[Path]:
    """Write the figure of each card as a small PNG with the name of the benchmark."""
    paths = []
    for card in shown:
        if (figure := _median_case_figure(card, read_run(card.run, card.title))) is not None:
            paths.append(folder / f"{card.name}.png")
            write_bytes(paths[-1], small_png(png_bytes(figure)))
    return paths


def _card(shown: GalleryCard, run: Run, folder: Path) -> Markup:
    link = tag("a", "Full report", href=shown.report.relative_to(folder).as_posix())
    parts = [
        tag("h2", shown.title),
        tag("p", shown.task),
        *_figures(shown, run),
        main_result(run),
        tag("p", _size_and_time(shown, run), class_="quiet"),
        tag("p", link),
    ]
    return tag("article", *parts, class_="card", id=shown.name)


def _size_and_time(shown: GalleryCard, run: Run) -> str:
    """Sizes of data and model, and times of solver and training."""
    points = len(run.cases.coords[RANKS.index("median")]) if run.cases else None
    train, test = get_nested(run.config, "data", "train"), run.metrics.get("samples")
    parameters, device = run.metrics.get("parameters"), run.metrics.get("device")
    return (
        f"{number(train)} training and {number(test)} test samples of {number(points)} points, "
        f"solved in {duration(shown.solver_seconds)}. {model_name(run)} with {number(parameters)} "
        f"parameters, trained in {training_time(run)} ({text(device)})."
    )


def _figures(shown: GalleryCard, run: Run) -> list[Markup]:
    figure = _median_case_figure(shown, run)
    if figure is None:
        return []
    frame = " Last frame." if has_frames(run) else ""
    moving_points = ""
    if run.cases is not None and run.cases.spec.position_outputs:
        moving_points = (
            " Points are drawn at their true or predicted positions; distant outliers are cut off."
        )
    still = picture(
        figure,
        alt=f"{shown.title}, median case: truth, prediction and absolute error",
        caption=f"The test sample with the median error.{frame} Truth and prediction share one colour scale; "
        f"the error has its own.{moving_points}",
    )
    moving = animation(run)
    return [still] if moving is None else [still, moving]


def _median_case_figure(shown: GalleryCard, run: Run) -> Figure | None:
    """Truth, prediction and error of the median case, in the last frame if there are frames.

    Points that move are drawn at their true positions, for the prediction at their predicted positions.
    """
    found, index = run.cases, RANKS.index("median")
    if found is None:
        return None
    if (figure := median_pressure_figure(shown.run)) is not None:
        return figure
    frame = run.task.frame
    channel = 0 if frame is None else len(found.spec.outputs) - frame + shown_channels(run)[-1]
    case, predicted = field_case(found, index, channel), found.positions(found.predictions, index)
    if predicted is not None:
        true = found.points(index)
        view = case.view or view_around(true)
        case = replace(case, coords=true, predicted_coords=predicted[:, -1], view=view)
    return strip_figure(case)
