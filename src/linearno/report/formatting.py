"""Values as a reader wants them."""

from math import isfinite
from typing import Any

NOTHING = "–"  # a value that the run did not record


def dig(record: Any, *names: str) -> Any:
    """`record[name][name]…`, or None where the path ends early."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def number(value: Any) -> str:
    """Four significant digits, all digits of a count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isfinite(value) else "not finite"


def text(value: Any) -> str:
    return NOTHING if value is None or value == "" else str(value)


def duration(seconds: Any) -> str:
    """Seconds below two minutes, then minutes and seconds, then hours and minutes."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
        return NOTHING
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
