"""A training step of every model is timed at the sizes of its recipes, or the table says why not."""

import pytest

from benchmarks import model_steps
from benchmarks.model_steps import step_case
from benchmarks.tables import TABLES
from linearno.core.errors import UserError
from linearno.reproduce.records import read_records
from tests.commands import measure, refused_measurement


def test_times_of_models_become_a_record_and_a_table(tmp_path):
    names = [word for name in ("mlp", "pod-gp", "factformer") for word in ("--model", name)]
    options = ["--shape", "elasticity", "--repeats", 1, "--device", "cpu", "--no-compile", "--out", tmp_path]
    code, output = measure("model-steps", *names, *options)
    assert code == 0, output
    assert "fitted in closed form" in output
    assert "needs data on a grid" in output
    record = read_records(tmp_path).records["bench/models/step"]
    facts = record.details["models"]["elasticity/mlp"]
    assert record.value == facts["times_ms"]["step"]["median"] > 0
    table = TABLES["model_steps"]({record.id: record})
    assert f"| `mlp` | Elasticity | {facts['parameters']:,} | " in table
    assert "factformer" not in table


def test_the_same_command_continues_the_record(tmp_path):
    options = ["--shape", "elasticity", "--repeats", 1, "--device", "cpu", "--no-compile", "--out", tmp_path]
    code, output = measure("model-steps", "--model", "mlp", *options)
    assert code == 0, output
    first = read_records(tmp_path).records["bench/models/step"]
    both = ["--model", "mlp", "--model", "pointnet"]
    code, output = measure("model-steps", *both, *options, "--minutes", 0)
    assert "out of time" in output
    code, output = measure("model-steps", *both, *options)
    assert "pointnet" in output
    assert not any(line.startswith("mlp") for line in output.splitlines())
    second = read_records(tmp_path).records["bench/models/step"]
    assert second.details["models"].keys() == {"elasticity/mlp", "elasticity/pointnet"}
    assert second.details["models"]["elasticity/mlp"] == first.details["models"]["elasticity/mlp"]


def test_a_step_that_fails_is_reported_and_the_others_are_kept(tmp_path, monkeypatch):
    def build(case, *arguments, **more):
        if case.name == "mlp":
            raise RuntimeError("out of memory")
        return our_step(case, *arguments, **more)

    our_step = model_steps.our_step
    monkeypatch.setattr(model_steps, "our_step", build)
    names = ["--model", "mlp", "--model", "pointnet"]
    options = ["--shape", "elasticity", "--repeats", 1, "--device", "cpu", "--no-compile", "--out", tmp_path]
    code, output = measure("model-steps", *names, *options)
    assert code == 0, output
    assert "step: out of memory" in output
    models = read_records(tmp_path).records["bench/models/step"].details["models"]
    assert models["elasticity/mlp"]["times_ms"] == {}
    assert models["elasticity/pointnet"]["times_ms"]["step"]["median"] > 0


def test_a_step_has_the_sizes_of_the_recipe():
    case = step_case("darcy", "fno")
    assert (case.points, case.spec.grid, case.training.batch) == (85 * 85, (85, 85), 4)
    assert step_case("elasticity", "fno").points == 972


def test_what_has_no_step_is_refused():
    with pytest.raises(UserError, match="no random fields"):
        step_case("plasticity", "linearno")
    assert "no step of 'ns'" in refused_measurement("model-steps", "--shape", "ns")
    assert "did you mean 'fno'" in refused_measurement("model-steps", "--model", "fnoo")
