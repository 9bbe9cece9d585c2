"""Format durations."""


def format_duration(seconds: float) -> str:
    """A duration rounded to two digits, such as 12 s, 3.4 min or 1.2 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds > 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{max(1, round(seconds))} s"
