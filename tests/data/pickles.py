"""Files of pickled dictionaries, good and bad."""

import io
from pathlib import Path

import numpy as np


def save(path: Path, value: dict) -> None:
    np.save(path, value, allow_pickle=True)


def write_pickle(path: Path, content: bytes) -> None:
    """A header that says "one object", and any bytes after it."""
    empty = io.BytesIO()
    np.save(empty, {}, allow_pickle=True)
    path.write_bytes(empty.getvalue().partition(b"\n")[0] + b"\n" + content)
