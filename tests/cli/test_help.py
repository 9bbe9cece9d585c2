"""The help pages of all verbs: quick to show, and readable on a terminal of 80 or 100 columns."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from benchmarks.cli import VERBS as MEASUREMENTS
from benchmarks.cli import app as benchmarks_app
from linearno.cli import app
from linearno.cli.commands import VERBS
from linearno.cli.data import app as data_app

DATA = [command.name or command.callback.__name__ for command in data_app.registered_commands]
PAGES = [
    (app, ()),
    *((app, (name,)) for verbs in VERBS.values() for name in verbs),
    *((app, ("data", name)) for name in DATA),
    (benchmarks_app, ()),
    *((benchmarks_app, (name,)) for verbs in MEASUREMENTS.values() for name in verbs),
]


def page(command, words, **settings):
    result = CliRunner().invoke(command, [*words, "--help"], **settings)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(("command", "words"), PAGES)
def test_help_fits_the_terminal_and_breaks_lines_between_words(command, words, columns):
    text = page(command, words, env={"COLUMNS": str(columns)})
    assert text.startswith("Usage: ")
    assert [line for line in text.splitlines() if len(line) > columns] == []
    unwrapped = page(command, words, terminal_width=10_000, max_content_width=10_000)
    assert text.split() == unwrapped.split()


@pytest.mark.parametrize(("command", "words"), [each for each in PAGES if each[1] and each[1] != ("data",)])
def test_help_of_a_verb_has_an_example(command, words):
    assert "Example" in page(command, words)


def test_the_overview_imports_nothing_heavy():
    code = "import sys; sys.argv = ['linearno', '--help']\nfrom linearno.cli import main\ntry: main()\n"
    code += "finally: print(*{'torch', 'numpy', 'matplotlib', 'pydantic', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == ""
    assert "  train     " in done.stdout


def test_a_mistyped_verb_is_answered_with_the_nearest():
    result = CliRunner().invoke(app, ["predic"])
    assert result.exit_code == 2
    assert "predict" in result.output
