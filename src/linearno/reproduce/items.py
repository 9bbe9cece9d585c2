"""Tables and figures of the paper as trainings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.models import MODELS
from linearno.reproduce import published
from linearno.reproduce.cells import Cell, Cells, Item, Selection, chosen, record_id, run_of, table
from linearno.reproduce.claims import Claim
from linearno.run_config import benchmark_names

ITEMS: Registry[Item] = Registry("item of the paper")
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
SEVERAL = "relative L2 of volume, surface and force coefficient; rank correlation ρ of the coefficient"
AHEAD = Claim(
    "LinearNO is ahead of Transolver", "linearno", "transolver", opposite="Transolver is ahead of LinearNO"
)
STEPS = tuple(
    Claim(text, ABLATION_TITLES[better], ABLATION_TITLES[worse])
    for text, better, worse in (
        ("Separate φ and ψ lower the error with attention among slices", "2", "1"),
        ("Separate φ and ψ lower the error without attention among slices", "4", "3"),
        ("Leaving out attention among slices lowers the error of separate φ and ψ", "4", "2"),
        ("Leaving out attention among slices lowers the error of tied φ and ψ", "3", "1"),
    )
)
MORE_SLICES = (
    Claim("64 slices have a lower error than 16", "64", "16"),
    Claim("256 slices have a lower error than 64", "256", "64"),
)
OURS = "φ over M, ψ over N"
NORMALISED = tuple(
    Claim(f"{OURS} has a lower error than {other}", OURS, other) for other in DIMENSIONS if other != OURS
)


def _register(name: str, title: str, needs: str, **facts: Any) -> Callable[[Cells], Cells]:
    def add(cells: Cells) -> Cells:
        ITEMS.register(name)(Item(name, title, needs, cells, **facts))
        return cells

    return add


def cells_of(name: str, selection: Selection) -> list[Cell]:
    """The selected cells of an item; an error if the item has no such row or column, or none can run."""
    cells = ITEMS[name].cells(selection)
    if not cells:
        raise UserError(f"{name} has no cell for this choice of models and benchmarks")
    return cells


@_register(
    "table1",
    "Relative L2 error of every model on the standard benchmarks",
    "generated or published data",
    claims=(AHEAD,),
)
def table1(selection: Selection) -> list[Cell]:
    own = [name for name in ("pod-gp",) if name in MODELS]
    rows = chosen("model", selection.models, [*published.TABLE1, *SUCCESSORS, *own])
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    runs = {row: (lambda column, row=row: run_of(column, row, selection)) for row in rows}
    return list(table("table1", selection, runs, columns, published.TABLE1, published.STANDARD))


def _industrial(item: str, columns: Sequence[published.Column], paper: Mapping[str, published.Row]) -> Cells:
    """Several metrics of one run for each model and data set; cells of a data set without reader say so."""

    def cells(selection: Selection) -> list[Cell]:
        rows = chosen("model", selection.models, list(paper))
        names = chosen(
            "benchmark", selection.benchmarks, list(dict.fromkeys(column.benchmark for column in columns))
        )
        return [
            _industrial_cell(item, row, column, paper[row][place], selection)
            for row in rows
            for place, column in enumerate(columns)
            if column.benchmark in names
        ]

    return cells


def _industrial_cell(
    item: str, row: str, column: published.Column, printed: float | None, selection: Selection
) -> Cell:
    empty = Cell(row, column.title, "", None, printed, metric=column.metric, higher=column.higher)
    if column.benchmark not in benchmark_names():
        return replace(empty, reason=f"the data set {column.benchmark} has no reader yet")
    try:
        config = run_of(column.benchmark, row, selection)
    except UserError as error:
        return replace(empty, reason=str(error))
    if column.metric not in {*config.metrics, *config.benchmark.summaries}:
        return replace(empty, reason=f"the benchmark {column.benchmark} has no metric {column.metric}")
    return replace(empty, id=record_id(item, column.benchmark, row, config, selection), config=config)


_register(
    "table2",
    "Errors on AirfRANS and ShapeNet-Car",
    "the data of airfrans and shapenet-car",
    metric=SEVERAL,
    claims=(AHEAD,),
)(_industrial("table2", published.TABLE2_COLUMNS, published.TABLE2))
_register(
    "ood",
    "Errors on AirfRANS outside the training range",
    "the data of airfrans-reynolds and airfrans-aoa",
    metric=SEVERAL,
    claims=(AHEAD,),
)(_industrial("ood", published.OOD_COLUMNS, published.OOD))


def _linearno_only(selection: Selection) -> None:
    if selection.models is not None and selection.models != ("linearno",):
        raise UserError("this item varies settings of linearno: leave --models out")


@_register(
    "table4",
    "Ablation of generalisation and simplification",
    "the data of each benchmark",
    claims=STEPS,
)
def table4(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    rows = {
        row: (lambda column, change=change: run_of(column, "linearno", selection, **change))
        for row, change in ABLATIONS.items()
    }
    paper, every = published.TABLE4, published.STANDARD
    return list(table("table4", selection, rows, columns, paper, every, ABLATION_TITLES))


def _by_slices(item: str, selection: Selection, model: str, columns: Sequence[str]) -> list[Cell]:
    paper = published.TABLE5 if model == "linearno" else {}
    rows = {
        row: (lambda column, row=row: run_of(column, model, selection, slices=int(row)))
        for row in published.TABLE5
    }
    return list(table(item, selection, rows, columns, paper, published.STANDARD))


@_register(
    "table5",
    "Error against the number of slices M",
    "the data of each benchmark",
    figure="lines",
    claims=MORE_SLICES,
)
def table5(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    return _by_slices("table5", selection, "linearno", columns)


@_register(
    "table6",
    "Dimensions over which φ and ψ are normalised",
    "the data of three benchmarks",
    claims=NORMALISED,
)
def table6(selection: Selection) -> list[Cell]:
    _linearno_only(selection)
    columns = chosen("benchmark", selection.benchmarks, published.ABLATED)
    rows = {
        row: (lambda column, change=change: run_of(column, "linearno", selection, **change))
        for row, change in DIMENSIONS.items()
    }
    cells = table("table6", selection, rows, columns, published.TABLE6, published.ABLATED)
    short = {row: "-".join(part.split()[2] for part in row.split(", ")) for row in DIMENSIONS}
    return [replace(cell, id=cell.id.replace(cell.row, short[cell.row])) for cell in cells]


@_register(
    "superresolution",
    "Field reconstruction: Burgers' equation from a few observed values",
    "the data of burgers",
    metric="relative MAE",
    claims=(Claim("LinearNO is ahead of LNO", "linearno", "lno", opposite="LNO is ahead of LinearNO"),),
)
def superresolution(selection: Selection) -> list[Cell]:
    rows = chosen("model", selection.models, list(published.SUPERRESOLUTION))
    columns = chosen("benchmark", selection.benchmarks, published.RATES)
    runs = {row: (lambda column, row=row: run_of(column, RECONSTRUCTION[row], selection)) for row in rows}
    return list(
        table("superresolution", selection, runs, columns, published.SUPERRESOLUTION, published.RATES)
    )


@_register(
    "fig-radar",
    "Transolver with and without attention among its slices",
    "the data of each benchmark",
    figure="radar",
    claims=(
        Claim(
            "Transolver has a lower error without attention among its slices",
            "without-slice-attention",
            "transolver",
        ),
    ),
)
def fig_radar(selection: Selection) -> list[Cell]:
    columns = chosen("benchmark", selection.benchmarks, published.STANDARD)
    whole = {"transolver": lambda column: run_of(column, "transolver", selection)}
    changed = {
        "without-slice-attention": lambda column: run_of(column, "transolver", selection, mix="identity")
    }
    return [
        *table("table1", selection, whole, columns, published.TABLE1, published.STANDARD),
        *table("fig-radar", selection, changed, columns, {}, published.STANDARD),
    ]


def _compared(selection: Selection) -> list[Cell]:
    """LinearNO next to Transolver with their published settings."""
    rows = chosen("model", selection.models, ("linearno", "transolver"))
    columns = chosen("benchmark", selection.benchmarks or ("airfoil",), published.STANDARD)
    runs = {row: (lambda column, row=row: run_of(column, row, selection)) for row in rows}
    return list(table("table1", selection, runs, columns, published.TABLE1, published.STANDARD))


for _name, _title in {
    "fig-slices": "Maps of φ and ψ: LinearNO next to Transolver",
    "fig-rank": "Rank of the attention kernel, layer by layer",
    "fig-error-maps": "Maps of the error of LinearNO and Transolver",
}.items():
    _register(
        _name,
        _title,
        "the data of airfoil, or of --benchmarks",
        figure=_name.removeprefix("fig-"),
        claims=(AHEAD,),
    )(_compared)


@_register(
    "fig-error-vs-slices",
    "Error of LinearNO and Transolver against the number of slices",
    "the data of airfoil, or of --benchmarks",
    figure="lines",
    claims=(replace(AHEAD, columns=True),),
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
