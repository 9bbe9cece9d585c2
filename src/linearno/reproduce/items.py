"""Tables and figures of the paper as trainings: one cell is one model on one benchmark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from linearno.core.config import override
from linearno.core.errors import UserError, did_you_mean
from linearno.core.registry import Registry
from linearno.data import DATASETS
from linearno.models import MODELS, self_fitting
from linearno.reproduce import published
from linearno.run_config import RunConfig, recipe

SUCCESSORS = ("lrsa", "flare", "flare++")  # rows of table1 that the paper does not have
RECONSTRUCTION = {"deeponet": "deeponet", "gnot": "cross-gnot", "lno": "cross-lno", "linearno": "linearno"}
ABLATIONS: dict[str, dict[str, Any]] = {  # table 4: generalisation, simplification
    "1": {"tied": True, "mix": "attention"},
    "2": {"mix": "attention"},
    "3": {"tied": True},
    "4": {},
}
ABLATION_TITLES = {
    "1": "1: tied φ and ψ, attention among slices",
    "2": "2: separate φ and ψ, attention among slices",
    "3": "3: tied φ and ψ, no attention among slices",
    "4": "4: separate φ and ψ, no attention among slices (LinearNO)",
}
DIMENSIONS = {  # table 6
    "φ over N, ψ over M": {"phi": "N", "psi": "M"},
    "φ over M, ψ over M": {"phi": "M", "psi": "M"},
    "φ over N, ψ over N": {"phi": "N", "psi": "N"},
    "φ over M, ψ over N": {},
}
NOT_IN_PAPER = "not applicable (“/” in the paper)"
DATA_MISSING = "the data set has no reader yet"
INDUSTRIAL = {  # column → benchmark, and metric or summary of its runs
    "AirfRANS volume": ("airfrans", "volume"),
    "AirfRANS surface": ("airfrans", "surface"),
    "AirfRANS C_L": ("airfrans", "lift_error"),
    "AirfRANS ρ_L": ("airfrans", "lift_spearman"),
    "Car volume": ("shapenet-car", "volume"),
    "Car surface": ("shapenet-car", "surface"),
    "Car C_D": ("shapenet-car", "drag_error"),
    "Car ρ_D": ("shapenet-car", "drag_spearman"),
}


@dataclass(frozen=True)
class Selection:
    """Which cells to run, and how; None: those of the paper.

    Args:
        models: rows of tables whose rows are models.
        benchmarks: columns.
        epochs: of each run instead of the published number; schedules are compressed.
        seeds: of initial weights and order of samples.
        samples: training and test samples of a small set; None: all.
        changes: "FIELD=VALUE" for every run, as `--set` of `linearno train`.
    """

    models: tuple[str, ...] | None = None
    benchmarks: tuple[str, ...] | None = None
    epochs: int | None = None
    seeds: tuple[int, ...] = (0,)
    samples: tuple[int, int] | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One number of a table: the test error of a run, or why there is none.

    Args:
        row: title of the row.
        column: title of the column.
        id: of the record with seed 0; other seeds add "/seedK".
        config: of the run with seed 0; None if the cell cannot be run.
        published: the number in the paper.
        reason: why the cell cannot be run.
        measure: metric or summary of the run that the cell shows; its main metric if empty.
    """

    row: str
    column: str
    id: str
    config: RunConfig | None
    published: float | None
    reason: str = ""
    measure: str = ""

    def seeded(self, seed: int) -> RunConfig:
        assert self.config is not None
        return self.config.model_copy(update={"seed": seed})

    def record_id(self, seed: int) -> str:
        """The id with its seed; other ids than `train/…` leave seed 0 out."""
        return f"{self.id}/seed{seed}" if seed or self.id.startswith("train/") else self.id


Cells = Callable[[Selection], list[Cell]]


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Args:
        name: on the command line.
        title: what it shows.
        needs: what it needs, in one line.
        cells: the trainings it is made of.
        figure: "lines" over numeric rows, "radar", "rank", "slices", "error-maps"; "" for none.
        metric: unit of the numbers.
        notes: what the page says about the item.
    """

    name: str
    title: str
    needs: str
    cells: Cells
    figure: str = ""
    metric: str = "relative L2"
    notes: tuple[str, ...] = field(default=())

    @property
    def needs_folders(self) -> bool:
        """Whether the figure reads run folders: a record alone does not fill a cell."""
        return self.figure in ("rank", "slices", "error-maps")


ITEMS: Registry[Item] = Registry("item of the paper")


def _register(name: str, title: str, needs: str, **facts: Any) -> Callable[[Cells], Cells]:
    def add(cells: Cells) -> Cells:
        ITEMS.register(name)(Item(name, title, needs, cells, **facts))
        return cells

    return add


def cells_of(name: str, selection: Selection) -> list[Cell]:
    """The selected cells of an item; an error if the item has no such row or column."""
    cells = ITEMS[name].cells(selection)
    if not cells:
        raise UserError(f"{name} has no cell for this choice of models and benchmarks")
    return cells


def chosen(kind: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """`wanted` in the order of `known`; an error for a name that is not known."""
    for name in wanted or ():
        if name not in known:
            raise UserError(f"unknown {kind} {name!r} of this item; {did_you_mean(name, known)}")
    return [name for name in known if wanted is None or name in wanted]


def shortened(config: RunConfig, epochs: int | None) -> RunConfig:
    """The run with another number of epochs; decays by epochs are compressed in proportion.

    A model that is fitted in closed form has no epochs to change.
    """
    if epochs is None or self_fitting(config.model.name):
        return config
    training = config.training
    changes: dict[str, Any] = {"epochs": epochs}
    if training.schedule == "step":
        changes["decay_epochs"] = max(1, round(training.decay_epochs * epochs / training.epochs))
    return config.model_copy(update={"training": training.model_copy(update=changes)})


def run_of(benchmark: str, model: str, selection: Selection, **settings: Any) -> RunConfig:
    """The recipe with the settings of an ablation and the changes of the selection."""
    config = shortened(recipe(benchmark, model), selection.epochs)
    if settings:
        changed = MODELS[config.model.name].config.make(config.model.model_dump() | settings)
        config = config.model_copy(update={"model": changed})
    if selection.samples is not None:
        train, test = selection.samples
        data = config.data.model_copy(update={"train": train, "test": test})
        config = config.model_copy(update={"data": data})
    return override(config, list(selection.changes))


def record_name(text: str) -> str:
    """A part of a record's id."""
    return text.replace("+", "p")


def _record_id(item: str, benchmark: str, row: str, config: RunConfig, selection: Selection) -> str:
    """`reproduce/ITEM/BENCHMARK/ROW/EPOCHS`; table1 has `league/…`, or `train/…` at the published epochs."""
    small = "" if selection.samples is None else "/{}-{}-samples".format(*selection.samples)
    if item != "table1":
        return f"reproduce/{item}/{benchmark}/{record_name(row)}/{config.training.epochs}{small}"
    if selection.epochs is None and not small:
        return f"train/{benchmark}/{record_name(row)}"
    return f"league/{benchmark}/{record_name(row)}/{config.training.epochs}{small}"


def _table(
    item: str,
    selection: Selection,
    rows: Mapping[str, Callable[[str], RunConfig]],
    columns: Sequence[str],
    paper: Mapping[str, published.Row],
    all_columns: Sequence[str],
    titles: Mapping[str, str] | None = None,
) -> Iterator[Cell]:
    """A cell for each row and column; `rows` maps a row to benchmark → run."""
    for row, build in rows.items():
        for column in columns:
            printed = paper[row][list(all_columns).index(column)] if row in paper else None
            title = (titles or {}).get(row, row)
            if row in paper and printed is None:
                yield Cell(title, column, "", None, None, NOT_IN_PAPER)
                continue
            try:
                config = build(column)
            except UserError as error:
                yield Cell(title, column, "", None, printed, str(error))
                continue
            yield Cell(title, column, _record_id(item, column, row, config, selection), config, printed)


@_register(
    "table1", "Relative L2 error of every model on the standard benchmarks", "generated or published data"
)
def table1(selection: Selection) -> list[Cell]:
    own = [name for name in ("pod-gp",) if name in MODELS]
    rows = chosen("model", selection.models, [*published.TABLE1, *SUCCESSORS, *own])
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    runs = {row: (lambda column, row=row: run_of(column, row, selection)) for row in rows}
    return list(_table("table1", selection, runs, columns, published.TABLE1, published.STANDARD))


def _industrial(item: str, columns: Sequence[str], paper: Mapping[str, published.Row]) -> Cells:
    """Cells that show several metrics of one run; without a run for data sets that the library lacks."""

    def cell(row: str, column: str, printed: float | None, selection: Selection) -> Cell:
        benchmark, measure = INDUSTRIAL.get(column, ("", ""))
        if benchmark not in DATASETS:
            return Cell(row, column, "", None, printed, DATA_MISSING)
        try:
            config = run_of(benchmark, row, selection)
        except UserError as error:
            return Cell(row, column, "", None, printed, str(error))
        id = _record_id("table1", benchmark, row, config, selection)
        return Cell(row, column, id, config, printed, measure=measure)

    def cells(selection: Selection) -> list[Cell]:
        rows = chosen("model", selection.models, list(paper))
        known = list(dict.fromkeys(INDUSTRIAL[column][0] for column in columns if column in INDUSTRIAL))
        wanted = chosen("benchmark", selection.benchmarks, known)
        shown = [c for c in columns if c not in INDUSTRIAL or INDUSTRIAL[c][0] in wanted]
        return [
            cell(row, column, paper[row][list(columns).index(column)], selection)
            for row in rows
            for column in shown
        ]

    return cells


_register("table2", "Errors on AirfRANS and ShapeNet-Car", "AirfRANS and ShapeNet-Car")(
    _industrial("table2", published.TABLE2_COLUMNS, published.TABLE2)
)
_register("ood", "Errors on AirfRANS outside the training range", "AirfRANS")(
    _industrial("ood", published.OOD_COLUMNS, published.OOD)
)


def _linearno_only(selection: Selection) -> None:
    if selection.models is not None and selection.models != ("linearno",):
        raise UserError("this item varies settings of linearno: leave --models out")


@_register("table4", "Ablation of generalisation and simplification", "the data of each benchmark")
def table4(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    rows = {
        row: (lambda column, change=change: run_of(column, "linearno", selection, **change))
        for row, change in ABLATIONS.items()
    }
    table = _table("table4", selection, rows, columns, published.TABLE4, published.STANDARD, ABLATION_TITLES)
    return list(table)


def _by_slices(item: str, selection: Selection, model: str, columns: Sequence[str]) -> list[Cell]:
    paper = published.TABLE5 if model == "linearno" else {}
    rows = {
        row: (lambda column, row=row: run_of(column, model, selection, slices=int(row)))
        for row in published.TABLE5
    }
    return list(_table(item, selection, rows, columns, paper, published.STANDARD))


@_register("table5", "Error against the number of slices M", "the data of each benchmark", figure="lines")
def table5(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    return _by_slices("table5", selection, "linearno", columns)


@_register("table6", "Dimensions over which φ and ψ are normalised", "the data of three benchmarks")
def table6(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.ABLATED)
    rows = {
        row: (lambda column, change=change: run_of(column, "linearno", selection, **change))
        for row, change in DIMENSIONS.items()
    }
    cells = _table("table6", selection, rows, columns, published.TABLE6, published.ABLATED)
    short = {row: "-".join(part.split()[2] for part in row.split(", ")) for row in DIMENSIONS}
    return [replace(cell, id=cell.id.replace(cell.row, short[cell.row])) for cell in cells]


@_register(
    "superresolution",
    "Field reconstruction: Burgers' equation from a few observed values",
    "the data of burgers",
    metric="relative MAE",
)
def superresolution(selection: Selection) -> list[Cell]:
    rows = chosen("model", selection.models, list(published.SUPERRESOLUTION))
    columns = chosen("benchmark", selection.benchmarks, published.RATES)
    runs = {row: (lambda column, row=row: run_of(column, RECONSTRUCTION[row], selection)) for row in rows}
    return list(
        _table("superresolution", selection, runs, columns, published.SUPERRESOLUTION, published.RATES)
    )


@_register(
    "fig-radar",
    "Transolver with and without attention among its slices",
    "the data of each benchmark",
    figure="radar",
)
def fig_radar(selection: Selection) -> list[Cell]:
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    rows = {
        "transolver": lambda column: run_of(column, "transolver", selection),
        "without-slice-attention": lambda column: run_of(column, "transolver", selection, mix="identity"),
    }
    paper = {"transolver": published.TABLE1["transolver"]}
    return list(_table("fig-radar", selection, rows, columns, paper, published.STANDARD))


def _compared(item: str) -> Cells:
    """LinearNO next to Transolver with their published settings."""

    def cells(selection: Selection) -> list[Cell]:
        rows = chosen("model", selection.models, ("linearno", "transolver"))
        columns = chosen("benchmark", selection.benchmarks or ("airfoil",), published.STANDARD)
        runs = {row: (lambda column, row=row: run_of(column, row, selection)) for row in rows}
        return list(_table("table1", selection, runs, columns, published.TABLE1, published.STANDARD))

    return cells


for _name, _title in {
    "fig-slices": "Maps of φ and ψ: LinearNO next to Transolver",
    "fig-rank": "Rank of the attention kernel, layer by layer",
    "fig-error-maps": "Maps of the error of LinearNO and Transolver",
}.items():
    _register(_name, _title, "the data of airfoil, or of --benchmarks", figure=_name.removeprefix("fig-"))(
        _compared(_name)
    )


@_register(
    "fig-error-vs-slices",
    "Error of LinearNO and Transolver against the number of slices",
    "the data of airfoil, or of --benchmarks",
    figure="lines",
)
def fig_error_vs_slices(selection: Selection) -> list[Cell]:
    rows = chosen("model", selection.models, ("linearno", "transolver"))
    columns = chosen("benchmark", selection.benchmarks or ("airfoil",), published.STANDARD)
    found = []
    for model in rows:
        item = "table5" if model == "linearno" else "slices-transolver"
        for cell in _by_slices(item, selection, model, columns):
            found.append(replace(cell, column=f"{model} on {cell.column}"))
    return found
