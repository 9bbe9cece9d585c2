"""The command line inside a test."""

from typer.testing import CliRunner

from linearno.cli import app


def linearno(*args):
    """Run a command in this process; its exit code, and all that it printed."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*args):
    """What a refused command says: one line, exit code 2."""
    code, output = linearno(*args)
    assert code == 2, output
    lines = output.strip().splitlines()
    complaint = [line for line in lines if line.startswith("error: ")]
    assert len(complaint) == 1, output
    assert lines[-1] == complaint[0], output
    return complaint[0]
