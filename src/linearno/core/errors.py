"""Errors that a user can correct: one line with what was expected, what was found and what to do."""

import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """An error that the user can correct, shown as one line with exit code 2.

    All other exceptions are bugs and keep their traceback.
    """


class SampleError(UserError):
    """An error of one sample of a batch.

    Args:
        index: index of the sample in the batch.
        message: what is wrong with it.
    """

    def __init__(self, index: int, message: str):
        super().__init__(f"sample {index}: {message}")
        self.index, self.message = index, message

    def __reduce__(self) -> tuple[type["SampleError"], tuple[int, str]]:
        return type(self), (self.index, self.message)


_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
MAX_VALUE_LENGTH = 200  # characters of a value in a message
MAX_MESSAGE_LENGTH = 1000  # characters of a message


def brief(value: object) -> str:
    """`repr(value)`, shortened to fit into a message."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # an integer with more digits than Python converts to text
        text = f"a large {type(value).__name__}"
    return shorten(text, MAX_VALUE_LENGTH)


def shorten(text: str, length: int = MAX_MESSAGE_LENGTH) -> str:
    """`text` in one line of at most `length` characters."""
    line = " ".join(text[: length + 1].splitlines())
    return line if len(text) <= length else line[: length - 1] + "…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that lists the known names most similar to `name`, or all if none is similar."""
    options = sorted(known)
    near = get_close_matches(name, options, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(options)}" if options else "none is known"


def look_up(kind: str, name: str, entries: Mapping[str, T]) -> T:
    """`entries[name]`; an error with similar names if there is no such `kind`."""
    if name not in entries:
        raise UserError(f"unknown {kind} {brief(name)}; {did_you_mean(name, entries)}")
    return entries[name]


def require(path: Path, *, how: str) -> Path:
    """`path` if it exists, else an error; `how` says what to do about it."""
    if not path.exists():
        raise UserError(f"{path} does not exist; {how}")
    return path
