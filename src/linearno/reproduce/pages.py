"""A table of the paper with our numbers beside the printed ones, as Markdown and HTML, and its figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from linearno.core.atomic_io import write_bytes, write_text
from linearno.report.formatting import capitalise
from linearno.report.html import Markup, table, tag
from linearno.report.page import document
from linearno.reproduce import figures
from linearno.reproduce.execute import run_folder
from linearno.reproduce.figures import svg_bytes
from linearno.reproduce.items import Cell, Item, Selection
from linearno.reproduce.plan import Found, Planned, look_up
from linearno.reproduce.records import Record
from linearno.viz import png_bytes

NOT_RUN, NOT_APPLICABLE = "not run", "/"
GUIDE = (
    "Each cell: our error, then the published one in brackets. Published errors are those of Hu et al. "
    "(2026) on the original files, ours those of the data below. “not run”: no record yet; “/”: does not "
    "apply."
)


@dataclass(frozen=True)
class Filled:
    """An item with what the records say about each cell."""

    item: Item
    selection: Selection
    cells: Sequence[Cell]
    found: Sequence[Found]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))

    @property
    def records(self) -> list[Record]:
        return [record for found in self.found for record in found.records.values()]

    @property
    def misfits(self) -> list[str]:
        return list(dict.fromkeys(text for found in self.found for text in found.misfits))

    def value(self, row: str, column: str) -> float | None:
        """The mean over seeds; None if the cell was not run."""
        for cell, found in zip(self.cells, self.found, strict=True):
            if (cell.row, cell.column) == (row, column):
                return mean(found.values) if found.records else None
        return None

    def counts(self) -> tuple[int, int]:
        """Filled cells, and cells that can be run."""
        runnable = [found for cell, found in zip(self.cells, self.found, strict=True) if cell.config]
        return sum(bool(found.records) for found in runnable), len(runnable)


def fill(item: Item, selection: Selection, records: Mapping[str, Record]) -> Filled:
    cells = item.cells(selection)
    return Filled(item, selection, cells, [look_up(cell, selection.seeds, records) for cell in cells])


def cell_text(cell: Cell, found: Found) -> str:
    printed = f" ({cell.published:.4f})" if cell.published is not None else ""
    if cell.config is None:
        return (NOT_APPLICABLE if cell.published is None else "no data") + printed
    if not found.records:
        return NOT_RUN + printed
    values = found.values
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread}{printed}"


def table_rows(filled: Filled) -> list[list[str]]:
    texts = {
        (cell.row, cell.column): cell_text(cell, found)
        for cell, found in zip(filled.cells, filled.found, strict=True)
    }
    return [[row, *(texts.get((row, column), "") for column in filled.columns)] for row in filled.rows]


def run_rows(filled: Filled) -> list[list[str]]:
    """A row for each record: where its number comes from."""
    return [
        [
            record.id,
            f"{record.value:.4g}",
            str(record.epochs),
            str(record.seed),
            record.data or "",
            _changes(record),
            "" if record.device_minutes is None else f"{record.device_minutes:.1f}",
            record.machine,
            (record.commit or "")[:10],
        ]
        for record in sorted(filled.records, key=lambda record: record.id)
    ]


RUN_HEAD = ["record", "value", "epochs", "seed", "data", "changed settings", "minutes", "machine", "commit"]


def _changes(record: Record) -> str:
    changed = record.details.get("changed", {})
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def reasons(filled: Filled) -> list[str]:
    """Why cells without a configuration cannot be run."""
    found: dict[str, list[str]] = {}
    for cell in filled.cells:
        if cell.config is None:
            found.setdefault(cell.reason, []).append(f"{cell.row} on {cell.column}")
    return [f"{_some(cells)}: {reason}" for reason, cells in found.items()]


def _some(cells: Sequence[str], most: int = 4) -> str:
    more = f" and {len(cells) - most} more" if len(cells) > most else ""
    return ", ".join(cells[:most]) + more


def caption(filled: Filled) -> str:
    done, whole = filled.counts()
    seeds = ", ".join(map(str, filled.selection.seeds))
    epochs = filled.selection.epochs
    count = f"{epochs} epoch{'s' if epochs != 1 else ''}"
    length = "published numbers of epochs" if epochs is None else f"{count}, with compressed schedules"
    small = ""
    if filled.selection.samples is not None:
        train, test = filled.selection.samples
        small = f" A small set: {train} training and {test} test samples."
    changes = f" Settings: {', '.join(filled.selection.changes)}." if filled.selection.changes else ""
    spread = " Mean ± standard deviation over seeds." if len(filled.selection.seeds) > 1 else ""
    facts = f"{capitalise(filled.item.metric)}; {done} of {whole} cells filled; {length}; seed {seeds}."
    return facts + small + changes + spread


@dataclass(frozen=True)
class Section:
    """A part of a page below its table: another table, or notes."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A table with its title, introduction, figures (by name) and further sections."""

    title: str
    text: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sections: Sequence[Section] = ()


def item_page(filled: Filled, figures: Mapping[str, Figure]) -> Page:
    """The page of an item as far as its cells are filled."""
    sections = []
    if rows := run_rows(filled):
        sections.append(Section("Runs", head=RUN_HEAD, rows=rows))
    if notes := [*filled.item.notes, *filled.misfits, *reasons(filled)]:
        sections.append(Section("Notes", notes=notes))
    head, text = ["", *filled.columns], f"{caption(filled)} {GUIDE}"
    return Page(filled.item.title, text, head, table_rows(filled), figures, sections)


def write_page(folder: Path, name: str, page: Page) -> None:
    """Write NAME.md, NAME.html, and the figures as PNG and SVG."""
    for figure_name, figure in page.figures.items():
        write_bytes(folder / f"{figure_name}.png", png_bytes(figure))
        write_bytes(folder / f"{figure_name}.svg", svg_bytes(figure))
    write_text(folder / f"{name}.md", markdown(page))
    write_text(folder / f"{name}.html", html(page))


def markdown(page: Page) -> str:
    parts = [f"# {page.title}", page.text, _markdown_table(page.head, page.rows)]
    parts.extend(f"![{page.title}]({name}.png)" for name in page.figures)
    for section in page.sections:
        parts.append(f"## {section.title}")
        if section.rows:
            parts.append(_markdown_table(section.head, section.rows))
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def html(page: Page) -> str:
    parts: list[Markup] = [_html_table(page.head, page.rows)]
    parts += [tag("figure", tag("img", src=f"{name}.png", alt=page.title)) for name in page.figures]
    for section in page.sections:
        parts.append(tag("h2", section.title))
        if section.rows:
            parts.append(_html_table(section.head, section.rows))
        if section.notes:
            parts.append(tag("ul", *(tag("li", note) for note in section.notes)))
    header = tag("header", tag("h1", page.title), tag("p", page.text, class_="quiet"))
    return document(page.title, header, tag("main", tag("section", *parts)))


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return table(list(head), [list(row) for row in rows])


def item_figures(filled: Filled, out: Path) -> dict[str, Figure]:
    """The figures of an item by name, from the cells that are filled and the run folders in `out`."""
    kind, name, unit = filled.item.figure, filled.item.name, filled.item.metric
    if kind == "lines":
        rows, columns = filled.rows, filled.columns
        series = {column: [(row, filled.value(row, column)) for row in rows] for column in columns}
        found = figures.complete_series(series)
        return {name: figures.lines_figure(found, x="number of slices M", y=unit)} if found else {}
    if kind == "radar":
        series = {
            row: [(column, filled.value(row, column)) for column in filled.columns] for row in filled.rows
        }
        found = figures.complete_series(series)
        complete = len(found) == len(filled.rows) and set.intersection(*map(set, found.values()))
        return {name: figures.radar_figure(found, unit=unit)} if complete else {}
    if filled.item.needs_folders:
        folders = _finished_folders(filled, out)
        if not folders:
            return {}
        if kind == "rank":
            figure = figures.ranks_figure(folders)
            return {} if figure is None else {name: figure}
        draw = figures.slice_figures if kind == "slices" else figures.error_map_figures
        return {f"{name}-{part}": figure for part, figure in draw(folders).items()}
    return {}


def _finished_folders(filled: Filled, out: Path) -> dict[str, Path]:
    """Run folders with example predictions, by row and column."""
    found = {}
    for cell in filled.cells:
        if cell.config is not None:
            folder = run_folder(out, Planned(cell.seeded(filled.selection.seeds[0]), ()))
            if has_examples(folder):
                found[f"{cell.row}-{cell.column}"] = folder
    return found


def has_examples(folder: Path) -> bool:
    return (folder / "figures" / "cases.npz").exists()


def suffices(item: Item, out: Path) -> Callable[[Planned], bool]:
    """Whether the record of a run is enough: a figure of slices or of errors needs its folder too."""
    return lambda run: not item.needs_folders or has_examples(run_folder(out, run))
