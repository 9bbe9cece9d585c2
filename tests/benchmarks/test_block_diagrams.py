"""The pictures of the blocks show every model, and the pages of the families show the pictures."""

from pathlib import Path

import pytest

from benchmarks.block_diagrams import Step, read_rows
from linearno.models import MODELS
from tests.commands import measure

DOCS = Path(__file__).parents[2] / "docs"
ROWS = read_rows()


def test_every_model_is_drawn_with_its_family():
    built_in = [MODELS[name] for name in MODELS if MODELS[name].cls.__module__.startswith("linearno.")]
    expected = {(entry.family.replace(" ", "_"), entry.name) for entry in built_in}
    assert {(family, name) for family, rows in ROWS.items() for name in rows} == expected


@pytest.mark.parametrize("family", ROWS)
def test_sums_add_what_an_earlier_step_holds(family):
    for row in ROWS[family].values():
        for number, step in enumerate(map(Step.read, row.split(" | "))):
            assert step.adds is None or step.adds < number - 1


def test_the_pages_show_the_pictures_that_the_command_draws(tmp_path):
    code, output = measure("block-diagrams", "--out", tmp_path)
    assert code == 0, output
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (DOCS / "figures" / "blocks").iterdir()}
    for name in drawn:
        page = (DOCS / "models" / name).with_suffix(".md").read_text(encoding="utf-8")
        assert f"(../figures/blocks/{name})" in page
