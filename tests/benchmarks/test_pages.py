"""The pages show what the records hold, and nothing else."""

from pathlib import Path

import pytest

from benchmarks.pages import TABLES, filled, pages, write_docs
from benchmarks.tables import registry
from linearno.core.errors import UserError
from linearno.reproduce.records import new_record, read_records

ROOT = Path(__file__).parents[2]


def contest(id, ours, peer):
    times = {
        name: {"median": value, "quartiles": [value - 0.1, value + 0.1], "calls": 9}
        for name, value in (("linearno, bf16", ours), ("plain, fp32", peer))
    }
    details = {
        "shape": {"batch": 4, "points": 7225},
        "ours": "linearno, bf16",
        "times_ms": times,
        "peak_mib": {"linearno, bf16": 12.4, "plain, fp32": None},
        "absent": {"PhysicsNeMo, bf16": "not installed"},
        "of_ceiling": {"arithmetic": 0.25},
    }
    return new_record(id, ours, "ms", against={"plain, fp32": peer}, details=details)


@pytest.fixture
def records():
    training = new_record(
        "train/darcy/linearno",
        0.00512,
        "relative L2",
        against={"published": 0.0050},
        epochs=500,
        seed=0,
        data="generated, sha256 abc",
        device_minutes=18.5,
    )
    found = [contest("bench/step/darcy", 3.5, 50.2), contest("bench/attention/ns", 1.25, 2.5), training]
    return {record.id: record for record in found}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# x\n\n<!-- summary -->\nold\n<!-- /summary -->\n\n<!-- a note -->\n"
    )
    (tmp_path / "docs" / "a.md").write_text(
        "<!-- step -->\n<!-- /step -->\n<!-- train -->\n<!-- /train -->\n"
    )
    (tmp_path / "docs" / "b.md").write_text("nothing to fill\n")
    return tmp_path


def test_the_committed_pages_are_what_the_command_writes():
    records = read_records(ROOT / "results").records
    for page in pages(ROOT):
        assert filled(page, records) == page.read_text(encoding="utf-8"), (
            "run: python -m benchmarks results --write-docs"
        )


def test_a_training_with_other_settings_than_its_recipe_is_marked(records):
    records["train/darcy/linearno"].details["changed"] = {"training.clip": 1.0}
    for name in ("train", "summary"):
        assert "darcy/linearno, training.clip=1.0" in TABLES[name](records)


def test_accuracy_is_a_row_for_each_benchmark_with_the_caveat_about_the_data(records):
    other = records["train/darcy/linearno"].model_copy(update={"id": "train/darcy/transolver"})
    table = TABLES["accuracy"](records | {other.id: other})
    assert table.count("| Darcy |") == 1
    assert "| Darcy | 0.0051 | 0.0050 | 500 | 18 |" in table
    assert "These are different data sets." in table
    assert table.count(other.machine.partition(",")[0]) == 1


def test_speed_is_a_row_for_each_step_with_its_rivals_and_the_largest_predictions(records):
    facts = {"model": {"width": 256, "depth": 8}, "points": 10**7, "seconds": [0.7, 0.65, 0.6]}
    prediction = new_record("scale/predict/10M", 0.65, "s", details=facts)
    compiled = contest("bench/step/ns", 2.0, 30.0)
    compiled.against["plain, bf16, compiled"] = 5.0
    table = TABLES["speed"](records | {compiled.id: compiled, prediction.id: prediction})
    assert "| Darcy, 4 × 7,225 | 3.5 ms | | 50.2 ms (14×) |" in table
    assert "| Navier–Stokes, 4 × 7,225 | 2 ms | 5 ms (2.5×) | 30 ms (15×) |" in table
    assert "(width 256, depth 8, bf16): 0.65 s at 10⁷ points." in table


def test_a_record_of_a_changed_tree_and_a_set_of_another_scheme_are_reported(records):
    training = records["train/darcy/linearno"].model_copy(update={"commit": "0123456789abcdef-dirty"})
    assert "0123456789-dirty |" in TABLES["train"]({training.id: training})
    settings = {"sizes": {"train": 3}, "workers": 2, "device": "cpu", "resolution": 11, "scheme": "fine"}
    made = new_record("generate/plasticity", 4.0, "s", details=settings)
    assert "Plasticity at resolution 11, scheme fine: 3 samples" in TABLES["generation"]({made.id: made})


def test_every_table_of_records_says_when_there_is_none():
    measured = {name: write for name, write in TABLES.items() if name not in ("models", "benchmarks")}
    assert all(write({}).startswith("Not yet measured") for write in measured.values())


def test_the_table_of_models_shows_which_train_on_which_benchmark():
    head, _, *rows = TABLES["models"]({}).partition("\n\n")[0].splitlines()
    benchmarks = [cell.strip() for cell in head.split("|")[3:-1]]
    cells = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[3:-1]] for row in rows}
    cells = {names.strip("`"): marks for names, marks in cells.items()}
    found = {model: dict(zip(benchmarks, marks, strict=True)) for model, marks in cells.items()}
    assert set(found["linearno`, `cross-linearno"].values()) == {"●"}  # Burgers by the second
    assert found["transolver"]["Darcy"] == "●"
    assert found["transolver"]["Burgers"] == ""  # needs a model that predicts at other points
    assert found["deeponet"] == {name: "●" if name == "Burgers" else "" for name in benchmarks}
    assert found["fno"]["Elasticity"] == "●"  # on a latent grid
    assert found["geo-fno"]["Darcy"] == "○"
    assert {name for names in found for name in names.split("`, `")} == set(registry._models())
    assert "[Li et al., 2021](https://arxiv.org/abs/2010.08895)" in TABLES["models"]({})


def test_the_table_of_benchmarks_describes_each_problem():
    table = TABLES["benchmarks"]({})
    assert "| `darcy` | permeability → pressure on the unit square" in table
    assert table.count("→") == len(registry._benchmarks())


def test_pages_are_filled_once_and_then_left_alone(project, records):
    assert write_docs(project, records) == [project / "README.md", project / "docs" / "a.md"]
    assert write_docs(project, records) == []
    readme = (project / "README.md").read_text()
    assert "| training step, darcy | 3.5 ms | 50.2 ms (plain, fp32) |" in readme
    assert (
        "| test relative L2, darcy/linearno, 500 epochs, generated data | 0.0051 | 0.0050 (published) |"
        in readme
    )
    assert readme.endswith("<!-- a note -->\n")


def test_a_step_is_compared_with_its_peers_by_spread_and_memory(project, records):
    write_docs(project, records)
    page = (project / "docs" / "a.md").read_text()
    assert "| linearno, bf16 | **3.5 (3.4–3.6); 12** |" in page
    assert "| plain, fp32 | 50.2 (50.1–50.3) |" in page
    assert "| PhysicsNeMo, bf16 | not installed |" in page
    assert "darcy 25 % (arithmetic)" in page
    assert (
        "| darcy/linearno | 0.00512 relative L2 | 0.0050 | 500 | 0 | generated, sha256 abc | 18.5 |" in page
    )


def test_an_unknown_table_is_refused_before_any_page_is_written(project, records):
    (project / "docs" / "a.md").write_text("<!-- stpe -->\n<!-- /stpe -->\n")
    with pytest.raises(UserError, match=r"a\.md: no such table 'stpe'; did you mean 'step'"):
        write_docs(project, records)
    assert "old" in (project / "README.md").read_text()


def test_a_place_without_a_readme_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"README\.md does not exist; run the command in the repository root"):
        pages(tmp_path)
