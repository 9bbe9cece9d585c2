"""Items that need no training: parameters and cost, Theorem 1, Appendix F."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from linearno.core.registry import Registry
from linearno.reproduce.cost_table import efficiency
from linearno.reproduce.equivalence import appendix_f as measure_appendix_f
from linearno.reproduce.figures import convergence_figure
from linearno.reproduce.pages import Captioned, Page, write_page
from linearno.reproduce.published import STANDARD
from linearno.reproduce.records import Record, new_record, write_record
from linearno.reproduce.theorem1 import theorem1 as measure_theorem1


class Computed(NamedTuple):
    """The record of a computation and its page."""

    record: Record
    page: Page


Compute = Callable[[str], Computed]  # of the title of the page


@dataclass(frozen=True)
class ComputedItem:
    """A table, figure or theorem that is computed in seconds."""

    title: str
    compute: Compute


COMPUTED: Registry[ComputedItem] = Registry("item of the paper")


def _register(name: str, title: str) -> Callable[[Compute], Compute]:
    def add(compute: Compute) -> Compute:
        COMPUTED.register(name)(ComputedItem(title, compute))
        return compute

    return add


def compute_item(name: str, out: Path, records: Path) -> Computed:
    """Compute an item, write its record, page and figures."""
    item = COMPUTED[name]
    computed = item.compute(item.title)
    write_record(records, computed.record)
    write_page(out, name, computed.page)
    return computed


@_register("table3", "Parameters and cost of LinearNO and Transolver on six benchmarks")
def table3(title: str) -> Computed:
    table = efficiency()
    rows = []
    for model in ("transolver", "linearno"):
        costs = [table[benchmark][model] for benchmark in STANDARD]
        rows += [
            [f"{model}: parameters (10⁶)", *(f"{c.params / 1e6:.2f} ({c.paper_params:.2f})" for c in costs)],
            [
                f"{model}: cost (10⁹), as the paper counts",
                *(f"{c.macs_paper_convention / 1e9:.2f} ({c.paper_macs:.2f})" for c in costs),
            ],
            [f"{model}: FLOPs of all products (10⁹)", *(f"{c.flops / 1e9:.2f}" for c in costs)],
        ]
    wrong = [
        f"{model} on {name}" for name in STANDARD for model, c in table[name].items() if not c.reproduces
    ]
    counted = 2 * sum(map(len, table.values()))
    text = (
        f"{counted - len(wrong)} of {counted} published numbers reproduce, in brackets. The paper counts "
        "multiply-adds of linear layers, convolutions, norms and softmax modules, without the products of "
        f"attention. Not reproduced: the cost of {', '.join(wrong)}; no setting gives both its columns."
    )
    counts = {name: {model: cost.counts() for model, cost in row.items()} for name, row in table.items()}
    record = new_record(
        "reproduce/table3",
        float(counted - len(wrong)),
        f"of {counted} published numbers",
        details={"counts": counts, "not_reproduced": wrong},
    )
    return Computed(record, Page(title, text, ["", *STANDARD], rows))


@_register("theorem1", "Theorem 1: attention on N random points converges to an integral operator")
def theorem1(title: str) -> Computed:
    result = measure_theorem1()
    record = new_record(
        "reproduce/theorem1",
        result.slope,
        "slope of log error over log N",
        against={"theory": -0.5},
        seed=0,
        details=asdict(result),
    )
    text = f"The error falls as N to the power {result.slope:.3f}; the theory says -0.5."
    rows = [[f"{n:,}", f"{error:.2e}"] for n, error in zip(result.sizes, result.errors, strict=True)]
    figure = convergence_figure(result.sizes, result.errors, slope=result.slope)
    head = ["points N", "relative L2 error"]
    return Computed(record, Page(title, text, head, rows, {"theorem1": Captioned(figure)}))


@_register("appendix-f", "Appendix F: cross-attention with learned tokens is linear attention")
def appendix_f(title: str) -> Computed:
    result = measure_appendix_f()
    record = new_record(
        "reproduce/appendix-f",
        result.value,
        "largest difference relative to the largest value, float64",
        seed=0,
        details=asdict(result),
    )
    text = (
        "Encode with tokens, attention among tokens, decode: by cross-attention, and by gather and scatter "
        "with the products of the projections as weights. Largest differences relative to the largest value."
    )
    rows = [["outputs", f"{result.value:.1e}"], ["gradients", f"{result.gradient:.1e}"]]
    head = ["", f"N = {', '.join(map(str, result.points))}"]
    return Computed(record, Page(title, text, head, rows))
