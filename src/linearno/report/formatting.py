"""Format numbers, durations and missing values."""

from math import isfinite
from typing import Any

MISSING = "–"  # a value that the run did not record


def get_nested(record: Any, *names: str) -> Any:
    """`record[name][name]…`, or None if a key is missing."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def number(value: Any) -> str:
    """A float with four significant digits, an integer with all digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isfinite(value) else "not finite"


def text(value: Any) -> str:
    """`value` as text, or a dash if it is missing."""
    return MISSING if value is None or value == "" else str(value)


def duration(seconds: Any) -> str:
    """Seconds up to two minutes, then minutes and seconds, from two hours hours and minutes."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
        return MISSING
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def capitalise(sentence: str) -> str:
    """`sentence` with a capital first letter, otherwise unchanged."""
    return sentence[:1].upper() + sentence[1:]
