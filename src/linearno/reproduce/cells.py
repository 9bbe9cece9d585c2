"""Cells of tables and figures: one cell is the error of one model on one benchmark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linearno.core.config import override
from linearno.core.errors import UserError, did_you_mean
from linearno.models import MODELS, self_fitting
from linearno.reproduce import published
from linearno.reproduce.claims import Claim
from linearno.run_config import RunConfig, recipe

NOT_IN_PAPER = "not applicable (“/” in the paper)"
LEAGUES = ("table1", "table2", "ood")  # tables that compare models with their published settings


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
        metric: metric or summary of the benchmark that the cell shows; the main metric if None.
        higher: whether larger values are better.
    """

    row: str
    column: str
    id: str
    config: RunConfig | None
    published: float | None
    reason: str = ""
    metric: str | None = None
    higher: bool = False

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
        claims: conclusions of the paper that the page compares with the measured errors.
    """

    name: str
    title: str
    needs: str
    cells: Cells
    figure: str = ""
    metric: str = "relative L2"
    claims: tuple[Claim, ...] = ()

    @property
    def needs_folders(self) -> bool:
        """Whether the figure reads run folders: a record alone does not fill a cell."""
        return self.figure in ("rank", "slices", "error-maps")


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
        sizes = {split: train if split == "train" else test for split in config.data.sizes}
        config = config.model_copy(update={"data": config.data.model_copy(update=sizes)})
    return override(config, list(selection.changes))


def record_name(text: str) -> str:
    """A part of a record's id."""
    return text.replace("+", "p")


def record_id(item: str, benchmark: str, row: str, config: RunConfig, selection: Selection) -> str:
    """`reproduce/ITEM/BENCHMARK/ROW/EPOCHS`; leagues have `league/…`, or `train/…` if of full length."""
    small = "" if selection.samples is None else "/{}-{}-samples".format(*selection.samples)
    if item not in LEAGUES:
        return f"reproduce/{item}/{benchmark}/{record_name(row)}/{config.training.epochs}{small}"
    if selection.epochs is None and not small:
        return f"train/{benchmark}/{record_name(row)}"
    return f"league/{benchmark}/{record_name(row)}/{config.training.epochs}{small}"


def table(
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
            yield Cell(title, column, record_id(item, column, row, config, selection), config, printed)
