"""Large meshes, benchmarked small: what a record of scale says."""

from dataclasses import replace

import pytest
import torch

from benchmarks import scale
from benchmarks.scale import (
    Measurement,
    Setup,
    bench_growth,
    bench_predict,
    bench_query,
    bench_train,
    exponent,
    fit_line,
)
from benchmarks.tables import TABLES
from benchmarks.timing import peak_resident_mib
from linearno.reproduce.records import read_record, write_record
from tests.commands import measure, refused_measurement

TINY = Setup(
    torch.device("cpu"), width=16, depth=2, memory="50MB", precision="fp32", repeats=2, heads=2, slices=4
)


def test_a_power_law_has_its_exponent():
    assert exponent([10, 100, 1000], [3.0, 30.0, 300.0]) == pytest.approx(1)
    assert exponent([10, 20, 40], [100.0, 400.0, 1600.0]) == pytest.approx(2)


def test_the_resident_set_rises_by_what_is_written():
    def work():
        torch.ones(2**24)

    rise = peak_resident_mib(work)
    assert rise is None or 60 < rise < 90  # MiB, of 64


def test_records_say_how_long_and_how_much_memory(tmp_path):
    found = {
        "scale/cpu/1M": bench_predict("scale/cpu/1M", 12_000, TINY),
        "scale/query": bench_query("scale/query", 20_000, TINY),
        "scale/train/4M": bench_train("scale/train/4M", 500, replace(TINY, repeats=1)),
    }
    for id, record in found.items():
        assert read_record(write_record(tmp_path, record)) == record
        assert record.value >= 0, id
    assert found["scale/cpu/1M"].details["keep"] == "host"
    assert found["scale/query"].details["query"]["seconds"]
    table = TABLES["scale"](found)
    assert "| prediction on a CPU | 12,000 | width 16, depth 2, fp32 |" in table
    assert "| training step | 500 |" in table


def test_growth_is_a_row_for_each_size_and_a_fit():
    record = bench_growth("scale/growth/cpu", [300, 1000, 3000], TINY)
    assert [row["points"] for row in record.details["rows"]] == [300, 1000, 3000]
    assert all(len(row["seconds"]) == 2 for row in record.details["rows"])
    assert f"time as N^{record.value:.2f}" in TABLES["growth"]({record.id: record})


def test_growth_is_fitted_where_a_mesh_is_more_than_a_chunk(monkeypatch):
    """Below that a time is what starting it takes, here 1 s whatever the size."""
    sizes = [100, 1000, 40_000, 80_000, 160_000]
    found = [Measurement([max(1.0, n / 10_000)], 1e6 + 100.0 * n) for n in sizes]
    monkeypatch.setattr(scale, "measure", lambda setup, *works: found)
    record = bench_growth("scale/growth/cpu", sizes, TINY)
    assert record.value == pytest.approx(1)
    assert record.details["fitted_from"] == 40_000
    assert record.details["exponents"]["memory"] == pytest.approx(1)
    assert "from 40,000 points on" in TABLES["growth"]({record.id: record})


def test_memory_is_fitted_by_a_straight_line_whose_parts_are_not_negative():
    sizes = [10**4, 10**5, 10**6]
    assert fit_line(sizes, [2e7 + 512 * n for n in sizes]) == pytest.approx((2e7, 512.0))
    assert fit_line(sizes, [512 * n - 1e6 for n in sizes])[0] == 0.0


def test_the_command_writes_records_and_a_picture(tmp_path):
    growth = ["--what", "growth", "--size", 100, "--size", 300, "--repeats", 1, "--device", "cpu"]
    code, output = measure("scale", *growth, "--figure", tmp_path / "g.png", "--out", tmp_path)
    assert code == 0, output
    assert "300 points" in output
    assert (tmp_path / "g.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "scale/growth/cpu.json").exists()
    assert "predict/100M needs a GPU" in refused_measurement(
        "scale", "--what", "predict/100M", "--device", "cpu"
    )
