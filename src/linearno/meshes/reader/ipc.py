"""Messages between two processes: words as JSON, then arrays as raw numbers. Nothing in one can run."""

import json
import math
import struct
from typing import IO, Any

import numpy as np
from numpy import ndarray

Words = dict[str, Any]
Arrays = dict[str, ndarray]
KINDS = "fiub"  # of numbers: real, signed, unsigned, true or false


class Refused(Exception):
    """What is wrong with a file, in words for the one who gave it."""


def send(stream: IO[bytes], words: Words, arrays: Arrays | None = None) -> None:
    plain = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    facts = [[name, array.dtype.str, list(array.shape)] for name, array in plain.items()]
    head = json.dumps([words, facts]).encode()
    stream.write(struct.pack("<Q", len(head)) + head)
    for array in plain.values():
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Words, Arrays] | None:
    """The next message; None where the other side has left."""
    try:
        (length,) = struct.unpack("<Q", _exactly(stream, 8))
        words, facts = json.loads(_exactly(stream, length))
        arrays = {}
        for name, kind, shape in facts:
            dtype = np.dtype(kind)
            if dtype.kind not in KINDS:
                raise ValueError(f"an array of {kind} is not sent")
            content = _exactly(stream, dtype.itemsize * math.prod(shape))
            arrays[name] = np.frombuffer(content, dtype).reshape(shape)
    except EOFError:
        return None
    return words, arrays


def _exactly(stream: IO[bytes], length: int) -> bytearray:
    content = bytearray(length)
    view, done = memoryview(content), 0
    while done < length:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]  # a pipe has it, IO does not say so
        if not count:
            raise EOFError
        done += count
    return content
