"""What the command says about its items: conclusions, time left, jobs."""

import re
from pathlib import Path
from statistics import median

import pytest
import torch

from linearno.reproduce.cells import Selection
from linearno.reproduce.claims import Claim, verdict_on
from linearno.reproduce.filled import fill, item_page
from linearno.reproduce.items import ITEMS, cells_of
from linearno.reproduce.packing import default_jobs
from linearno.reproduce.pages import markdown
from linearno.reproduce.plan import pending, stored_records
from linearno.reproduce.time_estimate import H200_SECONDS, estimate
from tests.commands import linearno
from tests.reproduce.small_runs import COMMAND, SMALL


def test_a_conclusion_needs_a_difference_that_exceeds_the_scatter():
    claim = Claim("A beats B", "a", "b", opposite="B beats A")
    one = {("a", "x"): [0.1], ("b", "x"): [0.2], ("a", "y"): [0.2], ("b", "y"): [0.1], ("a", "z"): [0.3]}
    holds, reverse = "holds on x (0.1000, 0.2000)", "B beats A on y (0.2000, 0.1000)"
    assert verdict_on(claim, one) == f"Paper: A beats B. Here: {holds}; {reverse}."
    scattered = {("a", "x"): [0.1, 0.2], ("b", "x"): [0.15, 0.26]}
    assert verdict_on(claim, scattered) == "Paper: A beats B. Here: is not decided on x (0.1500, 0.2050)."
    narrow = {("a", "x"): [0.100, 0.101], ("b", "x"): [0.110, 0.111]}
    assert "holds on x" in verdict_on(claim, narrow)
    assert verdict_on(claim, {("a", "x"): [], ("b", "x"): [0.2]}) is None
    columns = Claim("A beats B", "a", "b", columns=True)
    assert "holds on 16 on x (" in verdict_on(columns, {("16", "a on x"): [0.1], ("16", "b on x"): [0.2]})


def test_transolver_ahead_of_linearno_is_said(finished):
    selection = Selection(benchmarks=("darcy",), models=("linearno", "transolver"))
    records = stored_records(Path("results"))
    page = markdown(item_page(fill(ITEMS["table1"], selection, records), {}))
    ours, theirs = (records[f"train/darcy/{model}"].value for model in selection.models)
    assert ours > theirs
    assert "Transolver is ahead of LinearNO on darcy (" in page


def test_the_list_says_what_is_needed_filled_and_left(tmp_path, finished):
    call = ["reproduce", "--list", "--epochs", 2, "--samples", 6, 3, *COMMAND, "--device", "cpu"]
    code, output = linearno(*call, "--out", tmp_path, "--records", finished / "records")
    assert code == 0, output
    lines = {line.split("  ")[0]: line for line in output.splitlines()}
    assert {"table1", "table2", "table3, table-cost", "table4", "table5", "table6", "ood"} <= set(lines)
    assert {"superresolution", "theorem1", "appendix-f", *(name for name in ITEMS)} <= set(lines)
    assert "4 of 24" in lines["table4"]
    assert "the data of each benchmark" in lines["table4"]
    assert re.search(r"(about|roughly) [\d.,]+ (s|min|h) ", lines["table4"])


def test_a_run_with_a_record_takes_as_long_as_that(finished):
    records = stored_records(finished / "records")
    runs = pending(cells_of("table6", SMALL), SMALL, records)
    known = estimate(runs, records, cuda=False)
    assert not known.rough
    assert 0.2 < known.minutes / (3 * median(r.device_minutes for r in records.values())) < 5
    assert estimate(runs, {}, cuda=False).rough
    assert estimate(runs, records, cuda=True).rough  # records of a CPU say nothing about a GPU


def test_the_rough_times_are_those_of_the_records():
    for name, seconds in H200_SECONDS.items():
        record = stored_records(Path("results"))[
            f"train/{'burgers20' if name == 'burgers' else name}/linearno"
        ]
        assert 60 * record.device_minutes / record.epochs == pytest.approx(seconds, rel=0.1)


def test_small_steps_are_packed_where_mps_runs(tmp_path, monkeypatch):
    few, many = (
        pending(cells_of("table4", choice), choice, {})
        for choice in (Selection(benchmarks=("elasticity",)), Selection(benchmarks=("elasticity", "darcy")))
    )
    assert default_jobs(few, "cpu") == 1
    monkeypatch.setattr("linearno.reproduce.packing.find_spec", lambda name: name)
    monkeypatch.setattr("linearno.reproduce.packing.resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert default_jobs(few, "cuda") == 2
    assert default_jobs(few, "cuda:1") == 1
    (tmp_path / "control").touch()
    assert (default_jobs(few, "cuda"), default_jobs(many, "cuda"), default_jobs(many * 3, "cuda:0")) == (
        4,
        2,
        1,
    )
