"""The pages on Python and on models and benchmarks of one's own: every block runs, with smaller sizes."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from linearno.core.version import VERSION
from linearno.data import DATASETS
from linearno.models import MODELS
from tests.commands import linearno

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
DARCY = ["data.train=4", "data.test=3", "data.stride=8", "training.epochs=1"]
SMALLER = [
    (r"epochs=\d+", "epochs=1"),
    (r'"epochs": \d+', '"epochs": 1'),
    (r"(train|test): int = \d+", r"\1: int = 4"),
    (r'"train": \d+', '"train": 6'),
    (r'"data\.root=data/darcy"', ", ".join(f'"{change}"' for change in [*DARCY, "model.width=8"])),
]


@pytest.fixture
def workplace(tmp_path, monkeypatch, darcy_folder):
    """A folder with Darcy data; models, benchmarks and modules of the page are forgotten afterwards."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "darcy").symlink_to(darcy_folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    # The compiler cannot trace the type checks of the tests; tests/models/test_compiled_training.py compiles.
    monkeypatch.setattr(torch, "compile", lambda model, fullgraph: model)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: None)
    for registry, part in ((MODELS, "cls"), (DATASETS, "config")):  # without those of other tests
        ours = {
            name: entry
            for name, entry in registry._entries.items()
            if getattr(entry, part).__module__.startswith("linearno.")
        }
        monkeypatch.setattr(registry, "_entries", ours)
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def blocks(page):
    """Language and text of each block, with fewer samples and epochs."""
    for language, text in FENCED.findall((ROOT / page).read_text(encoding="utf-8")):
        for pattern, smaller in SMALLER:
            text = re.sub(pattern, smaller, text)
        yield language, text


def run_pages(*pages):
    """Run the blocks in order. A block that begins with the name of a file is written there instead."""
    names = {"__name__": pages[0]}
    for language, text in (block for page in pages for block in blocks(page)):
        if language == "sh":
            for line in text.splitlines():
                run_command(shlex.split(line, comments=True))
        elif language == "python" and (name := FILE_NAME.match(text)):
            Path(name[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, text.splitlines()[0], "exec"), names)
    return names


def run_command(words):
    assert words[0] == "linearno"
    if words[1] == "train":
        changes = DARCY if words[2].startswith("darcy/") else ["data.sectors=8"]
        words = [*words, "--device=cpu", *(f"--set={change}" for change in changes)]
    code, output = linearno(*words[1:])
    assert code == 0, (words, output)


def test_blocks_of_the_page_on_extending_run(workplace):
    names = run_pages("docs/how-to/own-model.md", "docs/how-to/own-benchmark.md")
    assert {"mean-net", "edge-net"} <= set(MODELS)
    assert names["surrogate"].model.__class__.__name__ == "MeanNet"
    assert names["batch"].segments.tolist() == [0, 35, 55]
    assert names["config"].model.name == "linearno"
    assert names["config"].model.slices == 16
    metrics = (workplace / "runs" / "cylinder-edge-net" / "metrics.json").read_text()
    assert "lift_spearman" in metrics
    assert "force_error" in metrics
    DATASETS._entries["cylinder"] = replace(DATASETS["cylinder"], models=names["models"])
    run_command(shlex.split("linearno train cylinder/linearno-averaged"))


def test_blocks_of_the_page_on_python_run(workplace):
    names = run_pages("docs/how-to/python.md")
    assert names["values"].shape == (1, 50, 1)
    assert names["packed"].shape == (350, 1)
    assert names["metrics"]["split"] == "test"


def test_the_quickstart_of_the_readme_runs(workplace):
    (quickstart,) = (text for language, text in blocks("README.md") if language == "python")
    assert len([line for line in quickstart.splitlines() if line]) <= 12
    names = {}
    exec(quickstart.replace("220", "24").replace("200", "20"), names)
    assert names["surrogate"].predict(names["a"][20:]).shape == (4, 441, 1)


def test_the_readme_is_short_and_names_the_version():
    readme, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CITATION.cff"))
    assert len(readme.splitlines()) < 150
    assert f"version = {{{VERSION}}}" in readme
    assert f"version: {VERSION}\n" in citation
