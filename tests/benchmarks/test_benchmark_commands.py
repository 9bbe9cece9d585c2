"""`python -m benchmarks results` and `python -m benchmarks step` and others, as a user meets them."""

import json

import pytest

from benchmarks.attention import AttentionShape
from benchmarks.cli.bench import step_case
from linearno.reproduce.records import new_record, read_record, write_record
from tests.commands import measure, refused_measurement
from tests.conftest import TINY


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "results"
    write_record(
        folder, new_record("bench/step/darcy", 8.25, "ms", against={"plain, fp32": 50.5, "bf16": 9.5})
    )
    (folder / "efficiency.json").write_text("{}")
    return folder


def test_records_are_listed_for_people(folder):
    code, output = measure("results", "--folder", folder)
    assert code == 0, output
    row = next(line for line in output.splitlines() if "bench/step/darcy" in line)
    assert "8.25" in row
    assert "(9.5 bf16)" in row
    assert "50.5" not in row
    assert "not records: " in output


def test_records_are_listed_whole_for_programs(folder):
    code, output = measure("results", "--folder", folder, "--json")
    assert code == 0
    assert json.loads(output) == [read_record(folder / "bench/step/darcy.json").model_dump(mode="json")]


def test_a_damaged_record_is_one_line(folder):
    (folder / "bench/step/darcy.json").write_text('{"id": "bench/step/darcy", "value": 1')
    assert "is not valid JSON" in refused_measurement("results", "--folder", folder)
    assert "no folder of records" in refused_measurement("results", "--folder", folder / "nowhere")


def test_pages_are_written_from_records(folder, tmp_path):
    (tmp_path / "README.md").write_text("<!-- step -->\n<!-- /step -->\n")
    code, output = measure("results", "--folder", folder, "--write-docs", "--root", tmp_path)
    assert code == 2
    assert "README.md: records of table 'step' lack" in output
    (folder / "bench/step/darcy.json").unlink()
    code, output = measure("results", "--folder", folder, "--write-docs", "--root", tmp_path)
    assert code == 0, output
    assert "Not yet measured" in (tmp_path / "README.md").read_text()
    assert "up to date" in measure("results", "--folder", folder, "--write-docs", "--root", tmp_path)[1]


def test_a_finished_run_is_recorded_on_request(folder, tiny_run):
    code, output = measure("results", "--folder", folder, "--record", tiny_run)
    assert code == 0, output
    assert read_record(folder / "train/darcy/linearno.json").recipe == "darcy/linearno"


def test_bench_attention_prints_and_keeps_a_record(folder, monkeypatch):
    monkeypatch.setattr("benchmarks.cli.bench.SHAPES", {"ns": AttentionShape(1, 20, 2, 4, 3)})
    options = ("--device", "cpu", "--repeats", 1, "--out", folder)
    code, output = measure("attention", "--shape", "ns", *options)
    assert code == 0, output
    assert "PhysicsNeMo, fp32" in output
    assert read_record(folder / "bench/attention/ns.json").value > 0


def test_bench_step_prints_a_table_and_writes_nothing_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = step_case("elasticity")
    small = case.model.model_copy(update={"width": 16, "depth": 1, "heads": 2, "slices": 4})
    tiny = type(case)("elasticity", case.spec, 21, small, case.training)
    monkeypatch.setattr("benchmarks.cli.bench.step_case", lambda name: tiny)
    code, output = measure("step", "--shape", "elasticity", "--device", "cpu", "--repeats", 1)
    assert code == 0, output
    assert "linearno, fp32" in output
    assert not list(tmp_path.iterdir())


def test_bench_train_leaves_a_run_and_a_record(darcy_folder, tmp_path):
    changes = [*TINY, f"data.root={darcy_folder}", "training.epochs=1"]
    settings = [word for change in changes for word in ("--set", change)]
    places = ("--run", tmp_path / "run", "--out", tmp_path / "results", "--id", "train/darcy/short")
    code, output = measure("train", "darcy/linearno", *settings, "--device", "cpu", *places)
    assert code == 0, output
    assert "published 0.005" in output
    record = read_record(tmp_path / "results/train/darcy/short.json")
    assert record.epochs == 1
    assert (tmp_path / "run" / "metrics.json").exists()


def test_tf32_on_a_cpu_is_refused_measurement():
    options = ("--shape", "ns", "--precision", "tf32", "--device", "cpu")
    assert "tf32 needs CUDA" in refused_measurement("attention", *options)
