"""Entry point of `python -m benchmarks`."""

import logging
import sys

from benchmarks.cli import app

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    app(prog_name="python -m benchmarks")
