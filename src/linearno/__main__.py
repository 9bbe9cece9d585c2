"""Run the command line with `python -m linearno`."""

from linearno.cli import main

main()
