"""Command line: one file per verb. Importing this package is cheap; `app` imports the verbs."""

import signal
import sys
from contextlib import contextmanager

from linearno.core.version import VERSION

TYPE_CHECKING = False  # as in linearno/__init__.py
if TYPE_CHECKING:
    from collections.abc import Iterator

    from linearno.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command in `sys.argv`."""
    if sys.argv[1:] == ["--version"]:
        print(f"linearno {VERSION}")
        return
    with quiet_interrupt():
        import logging

        from linearno.cli.commands import app
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def quiet_interrupt() -> "Iterator[None]":
    """Let Ctrl-C end the process without a traceback, for use during slow imports."""
    python_handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if python_handles:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if python_handles:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def __getattr__(name: str) -> object:
    if name == "app":
        from linearno.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
