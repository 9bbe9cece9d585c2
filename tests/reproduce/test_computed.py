"""Items of the paper that are computed without training."""

import re

import pytest

from linearno.reproduce.computed import COMPUTED
from linearno.reproduce.cost_table import efficiency
from linearno.reproduce.equivalence import appendix_f
from linearno.reproduce.plan import stored_records
from linearno.reproduce.published import STANDARD, TABLE3
from tests.commands import linearno, refused


def test_the_printed_costs_are_those_of_the_table():
    table = efficiency()
    for model, (params, macs) in TABLE3.items():
        costs = [table[name][model] for name in STANDARD]
        assert tuple(cost.paper_params for cost in costs) == params
        assert tuple(cost.paper_macs for cost in costs) == macs


def test_cross_attention_with_tokens_is_linear_attention_to_rounding():
    result = appendix_f(points=(5, 130), seed=3)
    assert 0 <= result.value < 1e-14
    assert 0 < result.gradient < 1e-13


@pytest.mark.parametrize("name", list(COMPUTED))
def test_the_command_writes_a_record_and_a_page(name, tmp_path):
    code, output = linearno("reproduce", name, "--out", tmp_path)
    assert code == 0, output
    assert list(stored_records(tmp_path / "records")) == [f"reproduce/{name}"]
    assert COMPUTED[name].title in (tmp_path / f"{name}.html").read_text()
    assert COMPUTED[name].title in (tmp_path / f"{name}.md").read_text()
    code, output = linearno("reproduce", "--list", "--out", tmp_path)
    assert re.search(rf"^{name}\b.* computed", output, re.MULTILINE), output
    assert "not computed" in output  # the others


def test_options_of_trainings_are_refused():
    assert "computed without training" in refused("reproduce", "table3", "--epochs", 3)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in refused("reproduce", "table3", "--out", tmp_path / "file" / "out")
