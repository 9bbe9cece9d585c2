"""The loop of the process: a job comes, its result goes back, until the other side leaves."""

import os
import signal
import traceback
from pathlib import Path
from typing import Any

from .commands import JOBS
from .ipc import Refused, receive, send

BASE, EACH = 3 * 2**30, 64  # bytes of memory that a job may take: so many, and so many for a byte of its file


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side decides
    inward, outward = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # whatever a library prints is no message
    os.dup2(quiet, 2)
    while (message := receive(inward)) is not None:
        words, arrays = message
        _limit_memory(words)
        send(outward, *_done(words, arrays))


def _done(words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        result, found = JOBS[words["job"]](words, arrays)
        return {"ok": result}, found
    except Refused as error:
        return {"refused": str(error)}, {}
    except MemoryError:
        return {"refused": "needs far more memory than its size suggests: it is damaged, or no such file"}, {}
    except ImportError as error:
        return {"missing": error.name or str(error)}, {}
    except OSError as error:
        return {"refused": f"cannot be read or written ({error.strerror or error})"}, {}
    except Exception:
        return {"bug": traceback.format_exc()}, {}


def _limit_memory(words: dict[str, Any]) -> None:
    """So that a damaged header that asks for a terabyte ends this job, not the machine."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    sizes = [Path(words[name]).stat().st_size for name in ("path", "beside") if _exists(words.get(name))]
    limit = BASE + EACH * sum(sizes)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


def _exists(path: str | None) -> bool:
    return path is not None and Path(path).exists()
