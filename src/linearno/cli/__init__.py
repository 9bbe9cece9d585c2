"""The command line: one file for each verb. Importing this package is cheap; the commands come with `app`."""

import signal
import sys

from linearno.core.version import VERSION

TYPE_CHECKING = False  # as in linearno/__init__.py
if TYPE_CHECKING:
    from typer import Typer

    from linearno.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command that `sys.argv` asks for."""
    if sys.argv[1:] == ["--version"]:
        print(f"linearno {VERSION}")
        return
    app = _import_app()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def _import_app() -> "Typer":
    """Import all commands, and PyTorch with them; Ctrl-C meanwhile ends the process at once, quietly."""
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import logging

    from linearno.cli.commands import app

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return app


def __getattr__(name: str) -> object:
    if name == "app":
        from linearno.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
