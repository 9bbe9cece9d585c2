"""The command line inside a test."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.cli import app as benchmarks_app
from linearno.cli import app


def linearno(*args):
    """Run a command in this process; its exit code, and all that it printed."""
    return _invoke(app, args)


def measure(*args):
    """Run `python -m benchmarks …` in this process; its exit code, and all that it printed."""
    return _invoke(benchmarks_app, args)


def _invoke(command, args):
    result = CliRunner().invoke(command, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def in_a_new_process(*args):
    """Run a command in a process of its own, in the folder of the project."""
    command = [sys.executable, "-m", "linearno", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])


def refused(*args, run=linearno):
    """What a refused command says: one line, exit code 2."""
    code, output = run(*args)
    assert code == 2, output
    lines = output.strip().splitlines()
    complaint = [line for line in lines if line.startswith("error: ")]
    assert len(complaint) == 1, output
    assert lines[-1] == complaint[0], output
    return complaint[0]


def refused_measurement(*args):
    """`refused`, for `python -m benchmarks …`."""
    return refused(*args, run=measure)
