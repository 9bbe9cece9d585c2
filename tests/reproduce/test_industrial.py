"""Tables of AirfRANS and ShapeNet-Car: cells resolve as soon as their benchmark is registered."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from linearno.data import DATASETS, Benchmark, DataConfig, FieldData, FieldSpec, Splits, relative_l2
from linearno.reproduce.cells import Selection
from linearno.reproduce.execute import execute_all, run_folder
from linearno.reproduce.filled import fill, item_page
from linearno.reproduce.items import ITEMS, cells_of
from linearno.reproduce.pages import markdown
from linearno.reproduce.plan import pending, stored_records
from linearno.reproduce.published import INDUSTRIAL, OOD, TABLE2
from tests.commands import refused
from tests.reproduce.small_runs import QUIET, TINY

NAME = "shapenet-car"
SELECTION = Selection(models=("linearno", "mlp"), benchmarks=(NAME,), epochs=1, samples=(4, 3), changes=())
SPEC = FieldSpec(coords=("x", "y"), outputs=("p",), standardised=("outputs",))


class StandInConfig(DataConfig):
    name: Literal["shapenet-car"] = "shapenet-car"
    root: Path = Path("nowhere")
    train: int = 4
    test: int = 3


def open_random(config):
    def split(count, seed):
        points = torch.rand(count, 30, 2, generator=torch.Generator().manual_seed(seed))
        return FieldData(SPEC, points, None, points.sum(-1, keepdim=True).sin())

    return Splits(split(config.train, 0), split(config.test, 1), "random points")


def generate_nothing(root, **options):
    """The samples are drawn when the set is opened."""


@pytest.fixture
def stand_in(monkeypatch):
    benchmark = Benchmark(
        summary="a stand-in",
        config=StandInConfig,
        open=open_random,
        verify=lambda root: [],
        generate=generate_nothing,
        resolution=1,
        metrics={"volume": relative_l2, "surface": lambda p, b: 2 * relative_l2(p, b)},
        summaries={"drag_error": lambda p, data: 0.25, "drag_spearman": lambda p, data: 0.75},
    )
    monkeypatch.setitem(DATASETS._entries, NAME, benchmark)


def test_one_run_fills_four_columns(stand_in, tmp_path):
    records = tmp_path / "records"
    selection = Selection(**{**vars(SELECTION), "models": ("linearno",), "changes": TINY})
    planned = pending(cells_of("table2", selection), selection, {})
    assert [run.ids for run in planned] == [("league/shapenet-car/linearno/1/4-3-samples",)]
    assert execute_all(planned, tmp_path, records, minutes=None, **QUIET) == {}
    metrics = json.loads((run_folder(tmp_path, planned[0]) / "metrics.json").read_text())
    filled = fill(ITEMS["table2"], selection, stored_records(records))
    volume = metrics["volume"]["mean"]
    expected = [volume, 2 * volume, 0.25, 0.75]
    assert [found.values[0] for found in filled.found] == pytest.approx(expected)
    page = markdown(item_page(filled, {}))
    assert "| linearno | " + f"{volume:.4f} (0.0194)" in page
    assert "0.2500 (0.0106) | 0.7500 (0.9925)" in page
    assert len(filled.records) == 1
    renamed = {"train/x/y": filled.records[0].model_copy(update={"id": "train/x/y"})}
    assert fill(ITEMS["table2"], selection, renamed).counts() == (4, 4)  # the same run under another id
    renamed["train/x/y"].details["summaries"].pop("drag_error")
    assert fill(ITEMS["table2"], selection, renamed).counts() == (3, 4)


def test_a_larger_rank_correlation_is_better(stand_in, tmp_path):
    selection = Selection(**{**vars(SELECTION), "models": ("linearno", "transolver"), "changes": TINY})
    planned = pending(cells_of("table2", selection), selection, {})
    execute_all(planned, tmp_path, tmp_path / "records", minutes=None, **QUIET)
    records = stored_records(tmp_path / "records")
    changed = {
        id: record.model_copy(
            update={"details": {**record.details, "summaries": {"drag_error": error, "drag_spearman": rho}}}
        )
        for (id, record), error, rho in zip(records.items(), (0.1, 0.2), (0.9, 0.8), strict=True)
    }
    page = markdown(item_page(fill(ITEMS["table2"], selection, changed), {}))
    assert "Paper: LinearNO is ahead of Transolver. Here: holds on" in page
    holds = page.split("holds on")[1].split(";")[0]
    assert "Car C_D (0.1000, 0.2000)" in holds
    assert "Car ρ_D (0.9000, 0.8000)" in holds


def test_a_metric_that_the_benchmark_lacks_is_named(stand_in, monkeypatch):
    monkeypatch.setitem(DATASETS._entries, NAME, replace(DATASETS[NAME], summaries={}))
    reasons = {cell.column: cell.reason for cell in cells_of("table2", SELECTION)}
    assert reasons["Car volume"] == ""
    assert reasons["Car C_D"] == "the benchmark shapenet-car has no metric drag_error"


def test_a_data_set_without_reader_is_named(monkeypatch):
    for name in INDUSTRIAL:
        monkeypatch.delitem(DATASETS._entries, name, raising=False)
    for item, rows in (("table2", TABLE2), ("ood", OOD)):
        cells = cells_of(item, Selection())
        assert len(cells) == 8 * len(rows)
        assert all(cell.config is None and "has no reader yet" in cell.reason for cell in cells)
    assert "shapenet-car has no reader yet" in refused("reproduce", "table2", "--benchmarks", NAME)
    assert "airfrans-aoa has no reader yet" in refused("reproduce", "ood", "--models", "linearno")
