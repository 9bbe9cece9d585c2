"""Self-contained HTML page on run folders, without scripts and external resources."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from linearno.core.atomic_io import write_text
from linearno.core.provenance import package_version
from linearno.report import cases, own_cases
from linearno.report import plots as pictures
from linearno.report.benchmark_figures import benchmark_figures
from linearno.report.figures import write_figures
from linearno.report.html import Markup, join, tag
from linearno.report.run_folder import Run, read_runs
from linearno.report.summary import epochs, headline, model_name, provenance, recipe, summary


def write_report(folders: Sequence[Path], out: Path, figures: Path | None = None) -> list[Path]:
    """Write the page `out` on one or several runs, and its images to the folder `figures`.

    Returns the paths of the images.
    """
    text = page(read_runs(folders))
    write_text(out, text)
    return [] if figures is None else write_figures(text, figures)


def page(runs: list[Run]) -> str:
    """HTML of the page on these runs."""
    overview, figures = ("summary", "Summary", summary(runs)), _shared_figures(runs)
    each = [_run_section(run, index) for index, run in enumerate(runs)]
    title = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared"
    columns = "two" if len(figures) == 4 else "three"  # avoids a single figure in the last row
    links = (tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in (overview, *figures, *each))
    main = tag(
        "main",
        _section(*overview),
        tag("div", *(_section(*figure) for figure in figures), class_=f"figures {columns}"),
        *(_section(*run) for run in each),
    )
    return document(
        title,
        tag("header", tag("p", "linearno report", class_="quiet"), tag("h1", title), headline(runs)),
        tag("nav", tag("h2", "Contents"), tag("ul", *links), aria_label="Contents"),
        main,
        tag("footer", f"Written by linearno {package_version('linearno') or ''} from the run folders."),
    )


def document(title: str, *body: Markup) -> str:
    """HTML document with the style sheet inline."""
    style = files("linearno.report").joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · linearno"),
        tag("style", Markup(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


Section = tuple[str, str, Markup]  # anchor, title, content


def _shared_figures(runs: list[Run]) -> list[Section]:
    """Figures that compare the runs; those without data are omitted."""
    figures = [
        ("training", "Training", pictures.training(runs)),
        ("errors", "Errors", pictures.errors(runs)),
        ("time", "Error over time", pictures.over_time(runs)),
        ("rank", "Attention rank", pictures.rank(runs)),
    ]
    return [(anchor, title, figure) for anchor, title, figure in figures if figure is not None]


def _run_section(run: Run, index: int) -> Section:
    anchor = f"run-{index + 1}"
    parts = [
        tag("p", f"Recipe {recipe(run)}, model {model_name(run)}, {epochs(run)} epochs.", class_="quiet")
    ]
    if missing := _missing(run):
        parts.append(
            tag(
                "p", f"This folder contains no {missing}; parts that depend on it are omitted.", class_="note"
            )
        )
    for key, title, content in (
        ("comparison", "Comparison with simple predictions", own_cases.comparison(run)),
        ("quantities", "Integral quantities", own_cases.quantities(run)),
        ("cases", "Best, median and worst case", cases.cases(run)),
        ("benchmark", "Figures of the benchmark", benchmark_figures(run)),
        ("all", "All test cases", own_cases.all_cases(run)),
        ("motion", "The median case in motion", cases.animation(run)),
        ("slices", "Slices", pictures.slices(run)),
        ("source", "Provenance", provenance(run)),
    ):
        if content is not None:
            parts += [_heading("h3", f"{anchor}-{key}", title), content]
    return anchor, f"Run: {run.name}", join(parts)


def _section(anchor: str, title: str, content: Markup) -> Markup:
    return tag("section", _heading("h2", anchor, title), content)


def _heading(level: str, anchor: str, title: str) -> Markup:
    """A heading that links to itself."""
    return tag(level, tag("a", title, href=f"#{anchor}"), id=anchor)


def _missing(run: Run) -> str:
    """Names of files of a finished run that are missing."""
    files_found = {
        "config.yaml": run.config_text,
        "model.json": run.card,
        "metrics.json": run.metrics,
        "history.jsonl": run.history,
        "per_sample.csv": run.errors is not None,
        "figures/cases.npz": run.cases is not None,
    }
    names = [name for name, found in files_found.items() if not found]
    return " and no ".join(names)
