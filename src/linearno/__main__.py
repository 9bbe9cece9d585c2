"""`python -m linearno` is `linearno`."""

from linearno.cli import main

main()
