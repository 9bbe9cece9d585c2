"""The figures of an item, from filled cells and run folders."""

from collections.abc import Callable
from pathlib import Path

from linearno.reproduce import figures
from linearno.reproduce.cells import Item
from linearno.reproduce.execute import run_folder
from linearno.reproduce.filled import Filled
from linearno.reproduce.pages import Captioned
from linearno.reproduce.plan import Planned
from linearno.reproduce.run_figures import error_map_figures, ranks_figure, slice_figures

SLICES = "number of slices M"
DRAW = {"rank": ranks_figure, "slices": slice_figures, "error-maps": error_map_figures}


def item_figures(filled: Filled, out: Path) -> dict[str, Captioned]:
    """The figures of an item by name, from the cells that are filled and the run folders in `out`."""
    kind, name, unit = filled.item.figure, filled.item.name, filled.item.metric
    if kind == "lines":
        rows, columns = filled.rows, filled.columns
        series = {column: [(row, filled.value(row, column)) for row in rows] for column in columns}
        found = figures.complete_series(series)
        return {name: Captioned(figures.lines_figure(found, x=SLICES, y=unit))} if found else {}
    if kind == "radar":
        series = {
            row: [(column, filled.value(row, column)) for column in filled.columns] for row in filled.rows
        }
        found = figures.complete_series(series)
        complete = len(found) == len(filled.rows) and set.intersection(*map(set, found.values()))
        return {name: Captioned(figures.radar_figure(found, unit=unit))} if complete else {}
    if kind in DRAW and (folders := _finished_folders(filled, out)):
        return {f"{name}-{part}": figure for part, figure in DRAW[kind](folders).items()}
    return {}


def _finished_folders(filled: Filled, out: Path) -> dict[tuple[str, str], Path]:
    """Run folders with example predictions, by row and column."""
    found = {}
    for cell in filled.cells:
        if cell.config is not None:
            folder = run_folder(out, Planned(cell.seeded(filled.selection.seeds[0]), ()))
            if has_examples(folder):
                found[cell.row, cell.column] = folder
    return found


def has_examples(folder: Path) -> bool:
    return (folder / "figures" / "cases.npz").exists()


def suffices(item: Item, out: Path) -> Callable[[Planned], bool]:
    """Whether the record of a run is enough: a figure of slices or of errors needs its folder too."""
    return lambda run: not item.needs_folders or has_examples(run_folder(out, run))
