"""A table of the paper with the measured errors beside the printed ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from linearno.report.formatting import capitalise
from linearno.reproduce.cells import Cell, Item, Selection
from linearno.reproduce.claims import verdict_on
from linearno.reproduce.pages import Captioned, Page, Section
from linearno.reproduce.plan import Found, look_up, same_runs
from linearno.reproduce.records import Record

NOT_RUN, NOT_APPLICABLE, NO_DATA = "not run", "/", "no data"
GUIDE = (
    "Each cell: our error, then the published one in brackets. Published errors are those of Hu et al. "
    "(2026) on the original files, ours those of the data below."
)
LEGEND = {
    NOT_RUN: "no record yet",
    NOT_APPLICABLE: "does not apply",
    NO_DATA: "no reader of the data set",
}
CLAIMS_GUIDE = (
    "What the paper concludes, and what the errors above say about it; in brackets the two errors that are "
    "compared. With several seeds, means differ if they are two standard errors apart."
)
ONE_SEED = "With one seed only their order is known, not the scatter between seeds."
MAX_LISTED_CELLS = 4


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
        """Of all cells, each once, by id and seed."""
        found = {(r.id, r.seed): r for found in self.found for r in found.records.values()}
        return [found[key] for key in sorted(found, key=str)]

    @property
    def misfits(self) -> list[str]:
        return list(dict.fromkeys(text for found in self.found for text in found.misfits))

    @property
    def blocked(self) -> list[str]:
        """Records of another protocol that a run of a cell would replace."""
        return list(dict.fromkeys(text for found in self.found for text in found.blocked.values()))

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
    cells, same = item.cells(selection), same_runs(records)
    return Filled(item, selection, cells, [look_up(cell, selection.seeds, records, same) for cell in cells])


def cell_text(cell: Cell, found: Found) -> str:
    printed = f" ({cell.published:.4f})" if cell.published is not None else ""
    if cell.config is None:
        return (NOT_APPLICABLE if cell.published is None else NO_DATA) + printed
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


def runs_section(filled: Filled) -> Section | None:
    """Where each number comes from: facts that all runs share in a sentence, the others in a table."""
    if not (records := filled.records):
        return None
    changes = [record.details.get("changed", {}) for record in records]
    shared = {
        name: value for name, value in changes[0].items() if all((name, value) in c.items() for c in changes)
    }
    facts = [_facts(record, shared) for record in records]
    same = {name for name in facts[0] if len({fact[name] for fact in facts}) == 1}
    common = [SENTENCES[name].format(facts[0][name]) for name in SENTENCES if name in same and facts[0][name]]
    if shared:
        common.append(f"changed settings {_settings(shared)}")
    head = [name for name in facts[0] if name not in same or name in ("record", "error", "minutes")]
    text = f"All runs: {'; '.join(common)}." if common else ""
    return Section("Runs", text=text, head=head, rows=[[fact[name] for name in head] for fact in facts])


SENTENCES = {
    "epochs": "epochs {}",
    "seed": "seed {}",
    "data": "data {}",
    "changed settings": "changed settings {}",
    "machine": "{}",
    "commit": "commit {}",
}


def _facts(record: Record, shared: Mapping[str, Any]) -> dict[str, str]:
    changed = {k: v for k, v in record.details.get("changed", {}).items() if k not in shared}
    return {
        "record": record.id,
        "error": f"{record.value:.4g}",
        "epochs": str(record.epochs),
        "seed": str(record.seed),
        "data": record.data or "",
        "changed settings": _settings(changed),
        "minutes": "" if record.device_minutes is None else f"{record.device_minutes:.1f}",
        "machine": record.machine,
        "commit": (record.commit or "")[:10],
    }


def _settings(changed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def claims_section(filled: Filled) -> Section | None:
    """Which conclusions of the paper the measured errors support."""
    values = {
        (cell.row, cell.column): found.values for cell, found in zip(filled.cells, filled.found, strict=True)
    }
    higher = {(cell.row, cell.column) for cell in filled.cells if cell.higher}
    verdicts = [verdict_on(claim, values, higher.__contains__) for claim in filled.item.claims]
    said = [text for text in verdicts if text]
    if not said:
        return None
    seeds = "" if len(filled.selection.seeds) > 1 else f" {ONE_SEED}"
    return Section("Conclusions", text=CLAIMS_GUIDE + seeds, notes=said)


def reasons(filled: Filled) -> list[str]:
    """Why cells without a configuration cannot be run."""
    found: dict[str, list[str]] = {}
    for cell in filled.cells:
        if cell.config is None:
            found.setdefault(cell.reason, []).append(f"{cell.row} on {cell.column}")
    return [f"{_some(cells)}: {reason}" for reason, cells in found.items()]


def _some(cells: Sequence[str]) -> str:
    more = len(cells) - MAX_LISTED_CELLS
    return ", ".join(cells[:MAX_LISTED_CELLS]) + (f" and {more} more" if more > 0 else "")


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


def item_page(filled: Filled, figures: Mapping[str, Captioned]) -> Page:
    """The page of an item as far as its cells are filled."""
    sections = [section for section in (claims_section(filled), runs_section(filled)) if section]
    if notes := [*filled.misfits, *reasons(filled)]:
        sections.append(Section("Notes", notes=notes))
    rows = table_rows(filled)
    shown = " ".join(text for row in rows for text in row[1:])
    legend = "".join(f" “{sign}”: {meaning}." for sign, meaning in LEGEND.items() if sign in shown)
    text = f"{caption(filled)} {GUIDE}{legend}"
    return Page(filled.item.title, text, ["", *filled.columns], rows, figures, sections)
