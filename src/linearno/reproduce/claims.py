"""Conclusions of the paper, and whether measured errors support them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

DECIDED = 2.0  # standard errors of a difference between means over seeds
Key = tuple[str, str]  # row and column of a cell
Values = Mapping[Key, Sequence[float]]  # one value for each seed


@dataclass(frozen=True)
class Claim:
    """One row of a table has lower errors than another one, or one group of columns than another group.

    Args:
        text: the conclusion, as a sentence without its full stop.
        better: row that has the lower errors, or start of the titles of such columns.
        worse: row or columns with the higher errors.
        columns: whether `better` and `worse` name columns.
        opposite: what is said where the order is the other one; that it does not hold by default.
    """

    text: str
    better: str
    worse: str
    columns: bool = False
    opposite: str = ""

    def pairs(self, keys: Sequence[Key]) -> list[tuple[str, Key, Key]]:
        """The cells to compare: name of the comparison, better cell, worse cell."""
        if not self.columns:
            columns = dict.fromkeys(column for _, column in keys)
            found = [(column, (self.better, column), (self.worse, column)) for column in columns]
        else:
            found = [
                (f"{row}{column.removeprefix(self.better)}", (row, column), (row, other))
                for row, column in keys
                if column.startswith(self.better)
                and (other := column.replace(self.better, self.worse, 1)) != column
            ]
        return [(name, a, b) for name, a, b in found if a in keys and b in keys]


def verdict_on(claim: Claim, values: Values, higher: Callable[[Key], bool] = lambda key: False) -> str | None:
    """Where measured values support a claim, where not, where they are equal; None without values.

    Means over two or more seeds differ if they are `DECIDED` standard errors apart. With one seed there is
    only the order of two numbers.

    Args:
        claim: the conclusion.
        values: of the cells, one for each seed; empty if the cell was not run.
        higher: whether larger values of a cell are better.
    """
    reverse = claim.opposite or "does not hold"
    groups: dict[str, list[str]] = {"holds": [], reverse: [], "is not decided": []}
    for name, better, worse in claim.pairs(list(values)):
        ours, theirs = values[better], values[worse]
        if not ours or not theirs:
            continue
        gain = (mean(theirs) - mean(ours)) * (-1 if higher(better) else 1)
        equal = f"{mean(ours):.4f}" == f"{mean(theirs):.4f}"
        verdict = "is not decided" if equal or abs(gain) <= DECIDED * _standard_error(ours, theirs) else ""
        groups[verdict or ("holds" if gain > 0 else reverse)].append(
            f"{name} ({mean(ours):.4f}, {mean(theirs):.4f})"
        )
    said = [f"{verdict} on {', '.join(names)}" for verdict, names in groups.items() if names]
    return f"Paper: {claim.text}. Here: {'; '.join(said)}." if said else None


def _standard_error(a: Sequence[float], b: Sequence[float]) -> float:
    """Of the difference of two means; 0 with a single seed, whose scatter is not known."""
    if min(len(a), len(b)) < 2:
        return 0.0
    return sqrt(stdev(a) ** 2 / len(a) + stdev(b) ** 2 / len(b))
