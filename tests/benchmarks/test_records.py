"""A measured figure survives its file; a damaged one is named in a line."""

import json
from pathlib import Path

import pytest
import torch

from linearno.core.errors import UserError
from linearno.core.provenance import machine
from linearno.reproduce.records import new_record, read_record, read_records, write_record


@pytest.fixture
def record():
    return new_record(
        "bench/step/darcy",
        8.25,
        "ms",
        against={"plain, fp32": 50.5},
        recipe="darcy/linearno",
        details={"times_ms": {"linearno, fp32": [1.5, 2]}},
    )


def test_a_record_survives_its_file(record, tmp_path):
    path = write_record(tmp_path, record)
    assert path == tmp_path / "bench" / "step" / "darcy.json"
    assert read_record(path) == record
    assert read_records(tmp_path).records == {"bench/step/darcy": record}


def test_a_new_record_says_where_it_comes_from(record):
    assert record.machine == machine()
    assert "torch" in record.versions
    assert record.epochs is None


def test_the_gpu_is_named_where_the_work_was_done_on_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert machine(torch.device("cuda")) == f"Some GPU, {machine()}"
    assert machine(torch.device("cpu")) == machine()


def test_records_are_listed_by_id_and_other_json_is_set_apart(record, tmp_path):
    write_record(tmp_path, record)
    write_record(tmp_path, record.model_copy(update={"id": "bench/attention/ns"}))
    (tmp_path / "efficiency.json").write_text('{"darcy": {"linearno": {"params": 1}}}')
    listing = read_records(tmp_path)
    assert list(listing.records) == ["bench/attention/ns", "bench/step/darcy"]
    write_record(tmp_path, record.model_copy(update={"id": "bench/step/darcy-fine"}))
    assert list(read_records(tmp_path).records)[1:] == ["bench/step/darcy", "bench/step/darcy-fine"]
    assert listing.other_files == [tmp_path / "efficiency.json"]


def refusal(path):
    with pytest.raises(UserError) as error:
        read_record(path)
    line = str(error.value)
    assert line.startswith(f"{path}")
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": "fast"}, "value: "),
        ({"value": float("nan")}, "value: "),
        ({"machine": None}, "machine: "),
        ({"id": "../elsewhere"}, "id: "),
        ({"vlaue": 1.0}, "vlaue: no such field; did you mean 'value'"),
        ({"against": {"plain": "slow"}}, "against.plain: "),
    ],
)
def test_a_damaged_record_is_named_in_one_line(record, tmp_path, change, message):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record.model_dump(mode="json") | change))
    assert message in refusal(path)


def test_a_cut_or_foreign_file_is_no_record(record, tmp_path):
    path = write_record(tmp_path, record)
    path.write_text(path.read_text()[:-40])
    assert "is not valid JSON" in refusal(path)
    path.write_text('{"darcy": {}}')
    assert "is not a record" in refusal(path)
    path.write_text('{"id": "bench/step/darcy"}')
    assert "value: field required" in refusal(path)


def test_a_record_under_another_name_is_refused(record, tmp_path):
    path = write_record(tmp_path, record)
    path.rename(path.with_name("airfoil.json"))
    with pytest.raises(UserError, match=r"airfoil\.json contains the record bench/step/darcy; move it"):
        read_records(tmp_path)
    with pytest.raises(UserError, match="no folder of records"):
        read_records(tmp_path / "nowhere")


def test_every_committed_record_can_be_read():
    listing = read_records(Path(__file__).parents[2] / "results")
    assert "bench/cpu/darcy" in listing.records
    assert listing.other_files == []
