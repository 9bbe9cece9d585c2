"""CONTRIBUTING.md agrees with the configuration of the project."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_layers_are_those_of_the_contract():
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = re.search(r"lint-imports.*?\n\n(.*?)\n\n-", PAGE, re.DOTALL)[1]
    assert [line.strip() for line in listed.splitlines()] == contract["layers"]


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"python -m benchmarks ([a-z-]+)", PAGE))))
def test_commands_for_measurements_exist(verb):
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)", PAGE))))
def test_targets_of_make_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b((?:benchmarks|tests|docs)/[\w/.-]+)\b", PAGE))))
def test_files_exist(path):
    assert (ROOT / path).exists()
