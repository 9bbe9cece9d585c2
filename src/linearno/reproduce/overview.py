"""The list of items: what each needs, how many cells are filled, about how long the rest takes."""

from collections.abc import Mapping
from pathlib import Path

from linearno.reproduce.cells import Selection
from linearno.reproduce.computed import COMPUTED
from linearno.reproduce.filled import fill
from linearno.reproduce.item_figures import suffices
from linearno.reproduce.items import ITEMS
from linearno.reproduce.plan import pending
from linearno.reproduce.records import Record
from linearno.reproduce.time_estimate import estimate

ALIASES = {"table-cost": "table3"}
ORDER = ("table", "ood", "superresolution", "fig", "theorem", "appendix")  # as in the paper
HEAD = ("item", "cells filled", "rest takes", "needs", "shows")


def item_names() -> list[str]:
    """All items, tables first."""

    def place(name: str) -> tuple[int, str]:
        return next(index for index, start in enumerate(ORDER) if name.startswith(start)), name

    return sorted({*ITEMS, *COMPUTED}, key=place)


def overview(
    records: Mapping[str, Record], out: Path, selection: Selection, *, cuda: bool
) -> list[list[str]]:
    """A line for each item, below `HEAD`."""
    return [
        _computed_line(name, records) if name in COMPUTED else _line(name, records, out, selection, cuda)
        for name in item_names()
    ]


def _computed_line(name: str, records: Mapping[str, Record]) -> list[str]:
    done = f"reproduce/{name}" in records
    names = [name, *(alias for alias, meant in ALIASES.items() if meant == name)]
    state, rest = ("computed", "") if done else ("not computed", "seconds")
    return [", ".join(names), state, rest, "no data", COMPUTED[name].title]


def _line(name: str, records: Mapping[str, Record], out: Path, selection: Selection, cuda: bool) -> list[str]:
    item = ITEMS[name]
    filled = fill(item, selection, records)
    done, whole = filled.counts()
    runs = pending(filled.cells, selection, records, suffices(item, out))
    rest = str(estimate(runs, records, cuda=cuda)) if runs else ""
    return [name, f"{done} of {whole}" if whole else "no data", rest, item.needs, item.title]
