"""The figures of an item, from filled cells and run folders."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from linearno.reproduce import figures
from linearno.reproduce.cells import Item
from linearno.reproduce.execute import run_folder
from linearno.reproduce.filled import Filled
from linearno.reproduce.plan import Planned


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
