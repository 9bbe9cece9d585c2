"""Sections for a user's own cases: comparison with simple predictions, integral quantities, all cases."""

from typing import Any

from linearno.report.formatting import MISSING, get_nested, number
from linearno.report.html import Markup, details, join, table, tag
from linearno.report.run_folder import Run

MAX_ROWS = 15  # of the worst cases that are not collapsed


def is_of_cases(run: Run) -> bool:
    """Whether the run was trained on a user's own cases."""
    return get_nested(run.config, "data", "name") == "cases"


def comparison(run: Run) -> Markup | None:
    """Errors by field beside those of mean field, nearest case and the other models that were tried."""
    by_field = run.metrics.get("relative_l2_by_field")
    if not is_of_cases(run) or not isinstance(by_field, dict) or not by_field:
        return None
    fields, nearest = list(by_field), run.metrics.get("nearest_case") or {}
    rows = [
        ["this model, test cases", *(number(get_nested(by_field, name, "mean")) for name in fields)],
        ["nearest case, test cases", *(number(nearest.get(name)) for name in fields)],
        ["mean field, test cases", *(number(get_nested(by_field, name, "mean_field")) for name in fields)],
    ]
    parts = [
        tag("p", "Mean relative L2 error of each field. A useful model is well below the nearest case."),
    ]
    for one in run.choice.get("validation", []):
        errors = one.get("errors") or {}
        cells = [number(errors.get(name)) for name in fields] if errors else [MISSING] * len(fields)
        rows.append([f"{one.get('name')}, validation cases", *cells])
    parts.append(table(["", *fields], rows))
    if reason := run.choice.get("reason"):
        parts.append(tag("p", f"Chosen: {reason}.", class_="quiet"))
    if isinstance(shares := run.metrics.get("coverage"), dict):
        level = shares.get("level")
        found = ", ".join(f"{name} {number(value)}" for name, value in shares.items() if name != "level")
        parts.append(tag("p", f"Share of test values within their {number(level)} interval: {found}."))
    return join(parts)


def quantities(run: Run) -> Markup | None:
    """Errors of forces, averages and probes."""
    found = run.metrics.get("quantities")
    if not isinstance(found, dict) or not found:
        return None
    rows = [
        [name, *(number(get_nested(value, key)) for key in ("mean_error", "mean_size", "relative_error"))]
        for name, value in found.items()
    ]
    note = tag("p", "Each value is in quantities.csv of the run folder.", class_="quiet")
    return join([table(["quantity", "mean error", "mean size", "error / size"], rows), note])


def all_cases(run: Run) -> Markup | None:
    """Test cases by name, the worst first."""
    if run.errors is None or not run.names or len(run.names) != len(run.errors):
        return None
    order = (-run.errors).argsort(kind="stable").tolist()
    rows = [[run.names[i], number(float(run.errors[i]))] for i in order]
    head: list[Any] = ["case", "relative L2"]
    if len(rows) <= MAX_ROWS:
        return table(head, rows)
    return join([table(head, rows[:MAX_ROWS]), details(f"All {len(rows)} cases", table(head, rows))])
