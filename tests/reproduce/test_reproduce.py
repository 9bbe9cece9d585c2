"""Tables of the paper: which runs they need, and what a page says about cells with and without a record."""

import json
import shutil
import time

import pytest

from linearno.reproduce import published
from linearno.reproduce.cells import Selection, shortened
from linearno.reproduce.execute import OutOfTime, execute, execute_all
from linearno.reproduce.filled import cell_text, fill, item_page
from linearno.reproduce.items import ITEMS, cells_of
from linearno.reproduce.pages import markdown
from linearno.reproduce.plan import Planned, look_up, pending, stored_records
from linearno.run_config import recipe
from tests.commands import linearno, refused
from tests.reproduce.small_runs import COMMAND, QUIET, SMALL, TINY, run_all


def test_the_same_results_are_printed_in_several_tables():
    assert published.TABLE4["4"] == published.TABLE1["linearno"]
    columns = [published.STANDARD.index(name) for name in published.ABLATED]
    default = published.TABLE6["φ over M, ψ over N"]
    assert default == tuple(published.TABLE1["linearno"][column] for column in columns)
    of_32, of_64 = (published.TABLE5[slices] for slices in ("32", "64"))
    mixed = [of_32[i] if name == "ns" else of_64[i] for i, name in enumerate(published.STANDARD)]
    assert tuple(mixed) == published.TABLE1["linearno"]  # Navier-Stokes has 32 slices


@pytest.mark.parametrize("item", list(ITEMS))
def test_every_item_has_cells_that_can_be_run_or_say_why_not(item):
    cells = cells_of(item, Selection())
    for cell in cells:
        assert (cell.config is None) == bool(cell.reason)
    ids = [(cell.record_id(seed), cell.metric) for cell in cells for seed in (0, 1) if cell.config]
    assert len(set(ids)) == len(ids)


def test_cells_without_a_number_in_the_paper_are_not_run():
    cells = {(cell.row, cell.column): cell for cell in cells_of("table1", Selection())}
    assert cells["fno", "pipe"].config is None
    assert cell_text(cells["fno", "pipe"], look_up(cells["fno", "pipe"], (0,), {})) == "/"
    assert cells["lrsa", "pipe"].config is not None
    assert (
        sum(cell.config is not None for cell in cells.values() if cell.row in published.TABLE1) == 14 * 6 - 5
    )


def test_a_shorter_run_has_the_same_schedule_compressed():
    config = recipe("darcy", "linearno")
    assert shortened(config, 50).training == config.training.model_copy(update={"epochs": 50})
    stepped = config.training.model_copy(update={"schedule": "step", "decay_epochs": 100})
    short = shortened(config.model_copy(update={"training": stepped}), 50).training
    assert (short.decay_epochs, short.decay_epochs / short.epochs) == (10, 100 / config.training.epochs)


def test_data_sets_come_one_after_another_and_a_run_fills_cells_of_several_tables():
    both = cells_of("table4", Selection()) + cells_of("table5", Selection(benchmarks=("darcy", "elasticity")))
    planned = pending(both, Selection(), {})
    names = [run.config.data.name for run in planned]
    assert [name for i, name in enumerate(names) if name not in names[:i]] == [
        name for i, name in enumerate(names) if i == 0 or name != names[i - 1]
    ]
    shared = [run.ids for run in planned if len(run.ids) > 1]
    assert sorted(ids[1] for ids in shared) == [
        "reproduce/table5/darcy/64/500",
        "reproduce/table5/elasticity/64/500",
    ]


def test_a_finished_table_is_not_run_again(finished):
    assert pending(cells_of("table4", SMALL), SMALL, stored_records(finished / "records")) == []
    page = markdown(item_page(fill(ITEMS["table4"], SMALL, stored_records(finished / "records")), {}))
    assert "4 of 4 cells filled; 2 epochs" in page
    assert "6 training and 3 test samples" in page
    assert "model.tied=True" in page
    assert "not run (" not in page


def test_a_record_fills_equal_cells_of_other_tables(finished):
    """Row 4 of table 4 is the last row of table 6."""
    records = stored_records(finished / "records")
    planned = pending(cells_of("table6", SMALL), SMALL, records)
    assert [run.ids[0].split("/")[3] for run in planned] == ["N-M", "M-M", "N-N"]
    filled = fill(ITEMS["table6"], SMALL, records)
    ours = records["reproduce/table4/elasticity/4/2/6-3-samples"]
    assert filled.counts() == (1, 4)
    assert filled.records == [ours]


def test_a_finished_run_is_recorded_without_training_again(tmp_path, finished):
    run = pending(cells_of("table4", SMALL), SMALL, {})[0]
    (tmp_path / "runs").symlink_to(finished / "runs")
    began = {path: path.stat().st_mtime_ns for path in finished.rglob("history.jsonl")}
    execute_all([run], tmp_path, tmp_path / "records", minutes=None, **QUIET)
    assert list(stored_records(tmp_path / "records")) == list(run.ids)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("history.jsonl")} == began


def test_a_record_of_another_protocol_is_named_and_not_shown(finished):
    other = Selection(
        benchmarks=("elasticity",), epochs=2, samples=(6, 3), changes=(*TINY, "training.lr=0.1")
    )
    filled = fill(ITEMS["table4"], other, stored_records(finished / "records"))
    assert filled.counts() == (0, 4)
    assert "training.lr" in filled.misfits[0]
    assert "record of another protocol" in markdown(item_page(filled, {}))
    same = Selection(
        benchmarks=("elasticity",), epochs=2, samples=(6, 3), changes=(*TINY, "training.eval_batch=3")
    )
    assert fill(ITEMS["table4"], same, stored_records(finished / "records")).counts() == (4, 4)


def test_two_seeds_give_a_mean_and_a_spread(finished):
    one = fill(ITEMS["table4"], SMALL, stored_records(finished / "records"))
    more = Selection(**{**vars(SMALL), "seeds": (0, 1)})
    assert fill(ITEMS["table4"], more, stored_records(finished / "records")).misfits == []
    record = one.found[0].records[0]
    other = record.model_copy(update={"value": record.value + 0.002})
    found = one.found[0].__class__({0: record, 1: other}, ())
    assert cell_text(one.cells[0], found) == f"{record.value + 0.001:.4f} ± 0.0014 (0.0069)"


@pytest.mark.slow
def test_a_run_that_the_time_limit_stopped_ends_as_one_that_was_not_stopped(tmp_path, finished):
    with pytest.raises(OutOfTime):
        run_all("table4", tmp_path, minutes=0.0)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "data").symlink_to(finished / "data")
    first = pending(cells_of("table4", SMALL), SMALL, {})[0]
    until, began = time.monotonic() + 2, []

    def wait(record):
        began.append(record.epoch)
        time.sleep(max(0, until + 0.1 - time.monotonic()))

    places = (first, tmp_path, tmp_path / "records", "cpu")
    with pytest.raises(OutOfTime):
        execute(*places, small=True, until=until, on_epoch=wait)
    assert began in ([1], [])  # none if the data took that long to open
    assert stored_records(tmp_path / "records") == {}
    execute(*places, small=True, on_epoch=lambda record: began.append(record.epoch))
    assert began == [1, 2]
    ours, theirs = (stored_records(out / "records")[first.ids[0]] for out in (tmp_path, finished))
    assert ours.value == theirs.value


@pytest.mark.slow
def test_the_command_writes_pages_and_resumes(tmp_path):
    call = ["reproduce", "table4", "--benchmarks", "elasticity", "--epochs", 1, "--samples", 4, 2, *COMMAND]
    call += ["--device", "cpu", "--out", tmp_path]
    code, output = linearno(*call, "--dry-run")
    assert code == 0, output
    assert "0 of 4 cells filled" in output
    code, output = linearno(*call)
    assert code == 0, output
    assert "4 of 4 cells filled" in output
    assert json.loads((tmp_path / "records/reproduce/table4/elasticity/1/1/4-2-samples.json").read_text())
    page = (tmp_path / "table4.html").read_text()
    assert "Ablation of generalisation and simplification" in page
    code, output = linearno(*call)
    assert "every cell has its record" in output


def test_a_run_that_fails_leaves_the_others(tmp_path, finished, monkeypatch):
    (tmp_path / "data").symlink_to(finished / "data")
    planned = pending(cells_of("table4", SMALL), SMALL, {})
    broken = planned[0].config.model_copy(update={"init_from": "nowhere"})
    failed = execute_all(
        [Planned(broken, ("reproduce/x/y",)), planned[1]],
        tmp_path,
        tmp_path / "records",
        minutes=None,
        **QUIET,
    )
    assert "nowhere" in next(iter(failed.values()))
    assert list(stored_records(tmp_path / "records")) == list(planned[1].ids)


def test_what_cannot_be_reproduced_is_refused_in_one_line(tmp_path):
    out = ["--out", tmp_path]
    assert "did you mean 'table" in refused("reproduce", "table9", *out)
    assert "did you mean 'fno'" in refused("reproduce", "table1", "--models", "fnoo", *out)
    assert "did you mean 'darcy'" in refused("reproduce", "table1", "--benchmarks", "darcyy", *out)
    assert "of this item" in refused("reproduce", "table6", "--benchmarks", "pipe", *out)
    assert "leave --models out" in refused("reproduce", "table4", "--models", "fno", *out)
    assert "exclude each other" in refused("reproduce", "table1", "--full", "--samples", 4, 2, *out)
    assert not any(tmp_path.iterdir())


def test_too_small_a_set_is_refused(tmp_path, finished):
    cells = cells_of("table4", SMALL)
    planned = pending(cells, SMALL, {})[:1]
    folder = next((finished / "data").iterdir())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / folder.name).symlink_to(folder)
    more = planned[0].config.data.model_copy(update={"train": 7})
    config = planned[0].config.model_copy(update={"data": more})
    (tmp_path / "data" / "elasticity-7-3").symlink_to(folder)
    failed = execute_all(
        [Planned(config, ("reproduce/x/y",))], tmp_path, tmp_path / "r", minutes=None, **QUIET
    )
    assert "too few samples" in next(iter(failed.values()))


def test_a_cell_that_does_not_apply_is_said_and_not_run(tmp_path):
    line = refused("reproduce", "table1", "--models", "fno", "--benchmarks", "pipe", "--out", tmp_path)
    assert "fno on pipe: not applicable" in line
    assert not any(tmp_path.iterdir())


def test_a_record_of_another_protocol_is_kept_and_its_cell_left_out(tmp_path, finished):
    shutil.copytree(finished / "records", tmp_path / "records")
    before = stored_records(tmp_path / "records")
    call = ["reproduce", "table4", "--benchmarks", "elasticity", "--epochs", 2, "--samples", 6, 3, *COMMAND]
    line = refused(*call, "--set", "training.lr=0.1", "--device", "cpu", "--out", tmp_path)
    assert "table4/elasticity/1/2/6-3-samples is a record of another protocol (training.lr" in line
    assert stored_records(tmp_path / "records") == before
    assert not (tmp_path / "runs").exists()


def test_the_mean_of_a_recorded_run_over_seeds_is_one_value_for_each_seed(finished):
    records = stored_records(finished / "records")
    id = "reproduce/table4/elasticity/4/2/6-3-samples"
    seeds = [{"seed": 0, "value": 0.1, "device_minutes": 1.0, "commit": None}, {"seed": 1, "value": 0.3}]
    details = {**records[id].details, "seeds": seeds}
    mean = records[id].model_copy(update={"value": 0.2, "seed": None, "details": details})
    several = Selection(**{**vars(SMALL), "seeds": (0, 1, 2)})
    filled = fill(ITEMS["table4"], several, {id: mean})
    assert filled.found[3].values == [0.1, 0.3]
    assert filled.misfits == []
    assert cell_text(filled.cells[3], filled.found[3]) == "0.2000 ± 0.1414 (0.0050)"
    assert [run.config.seed for run in pending(filled.cells[3:], several, {id: mean})] == [2]
