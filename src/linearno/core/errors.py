"""Errors that a user can mend: one line that says what was expected, what came, and what to do."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """Shown as one line with exit code 2. Everything else is our bug and keeps its traceback."""


class SampleError(UserError):
    """What is wrong with one sample of a batch, and its place there."""

    def __init__(self, index: int, message: str):
        super().__init__(f"sample {index}: {message}")
        self.index, self.message = index, message

    def __reduce__(self) -> tuple[type["SampleError"], tuple[int, str]]:
        return type(self), (self.index, self.message)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known words, or all of them when none is near."""
    options = sorted(known)
    near = get_close_matches(name, options, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(options)}" if options else "none is known"


def entry(kind: str, name: str, entries: Mapping[str, T]) -> T:
    """That of this name; otherwise an error that names its neighbours."""
    if name not in entries:
        raise UserError(f"unknown {kind} {name!r}; {did_you_mean(name, entries)}")
    return entries[name]


def require(path: Path, *, how: str) -> Path:
    """`path`, if it exists; otherwise an error that says how to get it."""
    if not path.exists():
        raise UserError(f"{path} does not exist; {how}")
    return path
