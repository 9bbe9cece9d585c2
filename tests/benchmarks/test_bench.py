"""Benchmarks at tiny sizes: the candidates compute the same, and the record says what ran."""

import re
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmarks.attention import SHAPES, AttentionShape, attention_inputs, bench_attention, our_attention
from benchmarks.cli.bench import EXTRA_TRAINING, Shape, step_case
from benchmarks.plain_model import plain_attention, plain_twin
from benchmarks.step import StepCase, bench_step, our_step, plain_step
from benchmarks.tables import TABLES
from benchmarks.timing import TimingSettings, measure_ceilings
from linearno import LinearNO
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import ElasticityConfig, FieldSpec
from linearno.experiment import run
from linearno.models import MODELS
from linearno.recipes import RECIPES
from linearno.reproduce.records import read_record, write_record
from linearno.reproduce.run_records import (
    changed_settings,
    data_identity,
    record_of_precisions,
    record_of_run,
    record_runs,
    run_id,
)
from linearno.training import LossConfig, Rollout, Task, TrainingConfig

CPU = torch.device("cpu")
TINY = AttentionShape(batch=2, points=33, heads=3, head_width=5, slices=7)
SHORT = TimingSettings(warmup=1, rounds=2, repeats=2)


@pytest.fixture
def case():
    settings = {"width": 12, "depth": 2, "heads": 2, "slices": 5, "stem": "conv", "merge_layers": 2}
    return StepCase(
        name="tiny",
        spec=FieldSpec(
            coords=("x", "y"), inputs=("a",), outputs=("u",), grid=(5, 6), standardised=("outputs",)
        ),
        points=30,
        model=MODELS["linearno"].config.make(settings),
        training=TrainingConfig(batch=2, weight_decay=0.5, loss=LossConfig(gradient_weight=0.1)),
        recipe="darcy/linearno",
        flops=10**6,
    )


def test_our_attention_agrees_with_the_write_up_in_value_and_gradient():
    inputs = type(attention_inputs(TINY, CPU, "fp32"))(
        *(leaf.detach().double().requires_grad_() for leaf in attention_inputs(TINY, CPU, "fp32"))
    )
    ours, plain = our_attention(inputs), plain_attention(*inputs)
    torch.testing.assert_close(ours, plain)
    cotangent = torch.randn_like(ours)
    gradients = (torch.autograd.grad(out, inputs, cotangent) for out in (ours, plain))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "settings",
    [
        {"stem": "conv", "grid": (4, 7), "merge_layers": 2},
        {"temperature": None},
        {"mlp_ratio": 2, "temperature": (0.1, 2.0), "merge_layers": 2},
        {"grid": (4, 7), "unified": {"ref": 3}, "temperature": None},
    ],
)
@pytest.mark.parametrize("inputs", [0, 2])
def test_the_textbook_model_computes_what_ours_does(settings, inputs):
    torch.manual_seed(0)
    model = LinearNO(
        coords=2, inputs=inputs, outputs=3, width=12, depth=2, heads=2, slices=5, **settings
    ).double()
    plain = plain_twin(model).double()
    coords = torch.rand(2, 28, 2, dtype=torch.float64)
    fields = torch.randn(2, 28, inputs, dtype=torch.float64) if inputs else None
    torch.testing.assert_close(plain(coords, fields), model(coords, fields))


def test_the_textbook_model_is_of_the_published_linearno_only():
    with pytest.raises(UserError, match="published LinearNO"):
        plain_twin(LinearNO(coords=2, outputs=1, width=8, depth=1, heads=2, slices=3, tied=True))


@pytest.mark.parametrize("task", [Task(), Rollout()])
def test_both_steps_make_the_same_change_to_the_weights(case, task, monkeypatch):
    """Three steps from the same weights: what the networks then answer agrees."""
    if task == Rollout():  # from three frames to the next two
        frames = FieldSpec(coords=("x", "y"), inputs=("a", "b", "c"), outputs=("d", "e"), grid=(5, 6))
        case = replace(case, spec=frames, task=task)
    built = []
    build, twin = StepCase.build, plain_twin

    def remember(model):
        built.append(model)
        return model

    monkeypatch.setattr(StepCase, "build", lambda self, device: remember(build(self, device)))
    monkeypatch.setattr("benchmarks.step.plain_twin", lambda model: remember(twin(model)))
    for make in (our_step, plain_step):
        work = make(case, CPU, "fp32")
        for _ in range(3):
            work()
    ours, start, plain = built
    batch = case.batch(CPU)
    before, after, other = (model(batch.coords, batch.inputs) for model in (start, ours, plain))
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, other, rtol=1e-4, atol=1e-5)


def test_an_attention_record_holds_every_candidate(tmp_path):
    ceilings = measure_ceilings(CPU, size=16)
    record = bench_attention(
        "tiny", TINY, CPU, ["fp32", "bf16"], compiled=False, settings=SHORT, ceilings=ceilings
    )
    details = record.details
    assert record.id == "bench/attention/tiny"
    assert record.unit == "ms"
    assert record.value == details["times_ms"]["linearno, fp32"]["median"] > 0
    assert record.against.keys() == {"plain, fp32", "plain, bf16"}
    assert details["absent"].keys() == {"PhysicsNeMo, fp32", "PhysicsNeMo, bf16"}
    assert details["largest_relative_difference"]["fp32"] < 1e-5
    assert details["of_ceiling"].keys() == {"arithmetic", "memory"}
    assert read_record(write_record(tmp_path, record)) == record


@pytest.mark.parametrize(
    "place", ["physicsnemo.nn.module.physics_attention", "physicsnemo.models.transolver.Physics_Attention"]
)
def test_physicsnemo_takes_part_where_it_is_installed(monkeypatch, place):
    class Layer(nn.Module):
        """That package's layer, as far as it is called: its projections must not take part."""

        def __init__(self, dim, heads, dim_head, slice_num, use_te):
            super().__init__()
            self.heads, self.slices = heads, nn.Linear(dim_head, slice_num)
            self.in_project_x, self.in_project_fx, self.out_linear = (nn.Linear(1, 1) for _ in range(3))

        def forward(self, x):
            points, values = (
                part(x).unflatten(-1, (self.heads, -1)) for part in (self.in_project_x, self.in_project_fx)
            )
            weights = self.slices(points).softmax(dim=-1)
            tokens = torch.einsum("bnhm,bnhd->bhmd", weights, values)
            return self.out_linear(torch.einsum("bnhm,bhmd->bnhd", weights, tokens).flatten(2))

    module = ModuleType(place)
    module.PhysicsAttentionIrregularMesh = Layer
    parts = place.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, place, module)
    record = bench_attention("tiny", TINY, CPU, ["fp32"], compiled=False, settings=SHORT)
    assert record.against.keys() == {"plain, fp32", "PhysicsNeMo, fp32"}


def test_a_step_record_names_its_recipe_and_peer(case):
    record = bench_step(case, CPU, ["fp32"], compiled=False, settings=SHORT)
    assert record.id == "bench/step/tiny"
    assert record.recipe == "darcy/linearno"
    assert record.value == record.details["times_ms"]["linearno, fp32"]["median"] > 0
    assert record.against.keys() == {"plain, fp32"}
    assert record.details["largest_relative_difference"] < 1e-5


def test_every_shape_has_an_attention_and_a_step_at_the_published_size():
    assert set(SHAPES) == {str(shape) for shape in Shape}
    assert all(name in EXTRA_TRAINING or f"{name}/linearno" in RECIPES for name in SHAPES)
    for name, shape in SHAPES.items():
        case = step_case(name)
        model = case.model
        sizes = (case.training.batch, case.points, model.heads, model.width // model.heads, model.slices)
        assert sizes == (shape.batch, shape.points, shape.heads, shape.head_width, shape.slices)
    assert step_case("darcy").recipe == "darcy/linearno"
    assert len(step_case("ns").spec.outputs) == 10  # all frames of the recipe in one step
    car = step_case("car").build(torch.device("meta"))
    assert sum(weight.numel() for weight in car.parameters()) == 3_852_420


def test_a_finished_run_is_a_record_with_the_published_error(tiny_run):
    record = record_of_run(tiny_run)
    assert record.id == "train/darcy/linearno"
    assert record.unit == "relative L2"
    assert record.value == record.details["relative_l2"]["mean"]
    assert record.against["published"] == 0.0050
    assert (record.epochs, record.seed) == (3, 0)
    assert record.data.startswith("generated, sha256 ")
    assert 0 < record.device_minutes < 5
    assert "root" not in record.details["settings"]["data"]


def test_a_record_says_which_settings_are_not_those_of_its_recipe():
    recipe = RECIPES["ns/transolver"]()
    assert changed_settings(override(recipe, ["training.epochs=100", "seed=1"])) == {}
    assert changed_settings(override(recipe, ["training.epochs=100", "training.clip=1"])) == {
        "training.clip": 1.0
    }
    changes = ["data.stride=2", "data.root=elsewhere", "model.slices=16"]
    assert changed_settings(override(recipe, changes)) == {"data.stride": 2, "model.slices": 16}


def test_published_files_in_a_folder_below_are_hashed_too(tmp_path):
    (tmp_path / "Meshes").mkdir()
    (tmp_path / "Meshes" / "a.npy").write_bytes(b"numbers")
    found = data_identity(ElasticityConfig(root=tmp_path), f"published files a.npy in {tmp_path}/Meshes")
    assert re.fullmatch(r"published, sha256 [0-9a-f]{12}", found)


def test_runs_recorded_together_stand_in_one_table(tiny_run, tiny_config, tmp_path):
    run(tiny_config("darcy/transolver", "training.epochs=1"), tmp_path / "other", CPU)
    first, second = record_runs([tiny_run, tmp_path / "other"])
    assert first.against["transolver"] == second.value
    assert second.against["linearno"] == first.value
    assert second.against["published"] == 0.0055


def test_runs_that_differ_by_their_seed_make_one_record_of_their_mean(tiny_config, tmp_path):
    for seed in (0, 1):
        run(tiny_config("darcy/linearno", f"seed={seed}"), tmp_path / str(seed), CPU)
    values = [record_of_run(tmp_path / str(seed)).value for seed in (0, 1)]
    (record,) = record_runs([tmp_path / "0", tmp_path / "1"])
    assert record.value == pytest.approx(sum(values) / 2)
    assert [found["value"] for found in record.details["seeds"]] == values
    assert f"(mean of {min(values):.5f} to {max(values):.5f})" in TABLES["train"]({record.id: record})
    with pytest.raises(UserError, match="the same seed"):
        record_runs([tmp_path / "0", tmp_path / "0"])
    run(tiny_config("darcy/linearno", "seed=2", "training.lr=1e-4"), tmp_path / "2", CPU)
    with pytest.raises(UserError, match="differ by more than the seed"):
        record_runs([tmp_path / "0", tmp_path / "2"])


def test_the_price_of_a_precision_is_its_error_relative_to_the_others(tiny_config, tmp_path):
    folders = [tmp_path / f"{kind}-{seed}" for seed in (0, 1) for kind in ("bf16", "fp32")]
    for folder in folders:
        kind, seed = folder.name.split("-")
        run(tiny_config("darcy/linearno", f"training.precision={kind}", f"seed={seed}"), folder, CPU)
    record = record_of_precisions(folders)
    errors = [record_of_run(folder).value for folder in folders]
    assert record.id == "study/precision/darcy"
    assert record.unit == "error of bf16 / error of fp32"
    assert record.value == pytest.approx((errors[0] / errors[1] + errors[2] / errors[3]) / 2)
    assert "| bf16 | " in TABLES["precision"]({record.id: record})


def test_a_demo_is_no_training_record():
    assert run_id(RECIPES["demo/transolver"]()) == "demo/darcy/transolver"
    assert run_id(RECIPES["darcy/transolver"]()) == "train/darcy/transolver"


def test_a_folder_without_metrics_is_no_finished_run(tiny_run, tmp_path):
    (tmp_path / "config.yaml").write_text((tiny_run / "config.yaml").read_text())
    with pytest.raises(UserError, match=r"metrics\.json does not exist; give the folder of a finished run"):
        record_of_run(tmp_path)
