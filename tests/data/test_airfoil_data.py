import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from linearno.cli import app
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.data.airfoil import (
    PUBLISHED,
    RECIPE,
    AirfoilConfig,
    generate_airfoil,
    open_airfoil,
    verify_airfoil,
)
from linearno.data.card import read_card
from linearno.data.generate import Plan, generate
from linearno.experiment import run
from linearno.recipes import RECIPES
from linearno.solvers import airfoil as solver
from linearno.solvers import steady_flow
from tests.data.files import Stopped, edit, make_here, publish, stop_after

SIZES = {"train": 3, "test": 2}
RESOLUTION, POINTS = 45, 45 * 11


def fill(root: Path, recipe=RECIPE, **settings) -> None:
    plan = Plan.make({"seed": 1, "resolution": RESOLUTION, "sizes": SIZES} | settings)
    generate(recipe, root, plan, workers=1, tick=lambda n: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished set, 3 + 2 airfoils at 45×11, to be read only."""
    root = tmp_path_factory.mktemp("airfoil")
    return make_here(generate_airfoil, root, sizes=SIZES, resolution=RESOLUTION, seed=1)


@pytest.fixture
def made(finished, tmp_path) -> Path:
    """A copy to break."""
    return shutil.copytree(finished, tmp_path / "made")


@pytest.fixture
def published(finished, tmp_path) -> Path:
    """The same five airfoils under the published names, in float64: train, test, two more."""
    return publish(finished, PUBLISHED, tmp_path / "published", lambda train, test: [train, test, test[::-1]])


def config(root, **settings) -> AirfoilConfig:
    return AirfoilConfig.make({"root": root, **SIZES, **settings})


def test_the_set_on_disk_has_the_published_fields_and_how_each_was_made(finished):
    card = read_card(finished, how="")
    assert {name: facts.shape for name, facts in card.files.items() if name.startswith("train")} == {
        "train_X.npy": (3, 45, 11),
        "train_Y.npy": (3, 45, 11),
        "train_Q.npy": (3, 5, 45, 11),
        "train_theta.npy": (3, 8),
        "train_res.npy": (3,),
        "train_draws.npy": (3,),
    }
    assert (card.name, card.resolution) == ("airfoil", 45)
    assert np.load(finished / "train_draws.npy").tolist() == [1, 1, 1]
    assert (np.load(finished / "train_res.npy") <= 1e-6).all()
    assert verify_airfoil(finished) == []


def test_points_run_outwards_and_then_around_the_airfoil_with_the_mach_number_there(finished):
    train, test, source = open_airfoil(config(finished))
    x, y, q = (np.load(finished / f"train_{field}.npy") for field in "XYQ")
    for k in range(0, POINTS, 7):
        i, j = divmod(k, 11)
        assert train.coords[1, k].tolist() == [x[1, i, j], y[1, i, j]]
        assert train.targets[1, k].item() == q[1, 4, i, j]
    assert (train.coords.shape, train.inputs, test.targets.shape) == ((3, POINTS, 2), None, (2, POINTS, 1))
    assert (train.spec.coords, train.spec.inputs, train.spec.outputs) == (("x", "y"), (), ("mach",))
    assert (train.spec.grid, train.spec.scaled) == ((45, 11), ())
    assert "seed 1, resolution 45" in source


def test_fewer_points_can_be_asked_for(finished):
    train, _, _ = open_airfoil(config(finished, stride=2))
    q = np.load(finished / "train_Q.npy")
    np.testing.assert_array_equal(train.targets.reshape(3, 23, 6), q[:, 4, ::2, ::2])
    with pytest.raises(UserError, match=r"stride=4 does not fit .*these do: 1, 2"):
        open_airfoil(config(finished, stride=4))


def test_published_files_are_tested_on_the_samples_after_the_training_ones(published, finished):
    speed = np.load(published / "NACA_Cylinder_Q.npy")[:, 4].reshape(7, -1).astype(np.float32)
    train, test, source = open_airfoil(config(published))
    np.testing.assert_array_equal(train.targets[..., 0], speed[:3])
    np.testing.assert_array_equal(test.targets[..., 0], speed[3:5])
    assert test.targets.dtype == test.coords.dtype == torch.float32
    assert source == (
        "published files NACA_Cylinder_X.npy, NACA_Cylinder_Y.npy, NACA_Cylinder_Q.npy in "
        f"{published}, tested on samples 3 to 4"
    )
    assert verify_airfoil(published) == []
    ours = open_airfoil(config(finished))
    torch.testing.assert_close(ours.test.targets, test.targets, rtol=0, atol=0)
    torch.testing.assert_close(ours.test.coords, test.coords, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("field", "change", "complaint"),
    [
        ("Q", lambda q: q[:6], r"Q.npy holds 6 samples of Q, but .*X.npy holds 7 of X; expected as many"),
        ("Q", lambda q: np.moveaxis(q, 1, -1), r"Q has shape \(7, 45, 11, 5\); expected \(samples, 5, 22 n"),
        (
            "Q",
            lambda q: q[:, :4],
            r"NACA_Cylinder_Q.npy: Q has 4 channels; expected 5: density, ux, uy, p, mach",
        ),
        (
            "X",
            lambda x: x.swapaxes(1, 2),
            r"X has shape \(7, 11, 45\); expected \(samples, 22 n \+ 1, 5 n \+ 1",
        ),
        ("Y", lambda y: y.swapaxes(1, 2), r"Y has shape \(7, 11, 45\)"),
        ("Y", lambda y: -y, r"nodes of sample 0 do not run around an airfoil"),
        ("X", lambda x: x[:, :, ::-1], r"X.npy: the nodes of sample 0 do not run around an airfoil"),
        ("X", lambda x: x[0], r"NACA_Cylinder_X.npy: X has shape \(45, 11\)"),
    ],
)
def test_published_files_that_do_not_fit_are_told_in_one_line(published, field, change, complaint):
    path = published / PUBLISHED[field]
    np.save(path, np.ascontiguousarray(change(np.load(path))))
    with pytest.raises(UserError, match=complaint) as caught:
        open_airfoil(config(published))
    assert "\n" not in str(caught.value)


def test_a_number_that_is_not_finite_is_named_with_file_and_sample(made, published):
    edit(made / "test_Y.npy", (1, 4, 4), np.nan)
    with pytest.raises(UserError, match=r"test_Y.npy: Y: sample 1 has NaN or infinite"):
        open_airfoil(config(made))
    edit(published / "NACA_Cylinder_Q.npy", (4, 4, 4, 4), np.inf)
    with pytest.raises(UserError, match=r"NACA_Cylinder_Q.npy: Q: sample 4 has NaN or infinite"):
        open_airfoil(config(published))


def test_too_few_samples_are_counted_over_both_splits_of_a_file(made, published):
    with pytest.raises(UserError, match=r"train_X.npy holds 3 samples of X, but train=4 were asked for"):
        open_airfoil(config(made, train=4))
    with pytest.raises(UserError, match=r"Cylinder_X.npy holds 7 samples of X, but train=6 and test=2"):
        open_airfoil(config(published, train=6))


def test_a_missing_or_truncated_file_is_named_with_what_to_do(tmp_path, published):
    with pytest.raises(
        UserError, match=r"card.json does not exist; run `linearno data generate airfoil --out"
    ):
        open_airfoil(config(tmp_path / "nowhere"))
    path = published / "NACA_Cylinder_Y.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"NACA_Cylinder_Y.npy is truncated or not a .npy file; fetch"):
        open_airfoil(config(published))
    path.unlink()
    with pytest.raises(
        UserError, match=r"NACA_Cylinder_Y.npy does not exist; fetch the published files again"
    ):
        open_airfoil(config(published))
    assert len(verify_airfoil(published)) == 1


def test_a_file_that_was_changed_after_its_card_is_told_by_the_command(made):
    edit(made / "train_Q.npy", (0, 4, 3, 3), 0.5)
    result = CliRunner().invoke(app, ["data", "verify", "airfoil", "--root", str(made)])
    assert result.exit_code == 2
    assert "train_Q.npy is not the file that was made: its sha256 differs from the card" in result.output


def test_a_size_that_is_no_c_grid_is_told_by_the_command(tmp_path):
    command = ["data", "generate", "airfoil", "--resolution", "50", "--train", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "resolution 50 does not fit; Airfoil needs" in result.output


def test_a_set_that_was_stopped_goes_on_to_the_same_bytes(serial, finished, tmp_path):
    sizes = {"train": 2}
    plan = Plan.make({"seed": 1, "resolution": RESOLUTION, "sizes": sizes})
    with pytest.raises(Stopped):
        generate(RECIPE, tmp_path, plan, workers=1, tick=stop_after(1))
    fill(tmp_path, sizes=sizes)
    for name in read_card(tmp_path, how="").files:
        np.testing.assert_array_equal(np.load(tmp_path / name), np.load(finished / name)[:2])


def test_an_airfoil_that_is_drawn_again_keeps_its_number_and_leaves_the_others_alone(
    serial, finished, tmp_path, monkeypatch
):
    calls = []

    def second_fails_once(cells, outside):
        calls.append(1)
        reached = torch.full((1,), float(len(calls) == 2), dtype=torch.float64)
        return steady_flow.Steady(outside, reached, torch.zeros_like(reached))

    monkeypatch.setattr(solver, "march", second_fails_once)
    fill(tmp_path, sizes={"train": 3})
    assert np.load(tmp_path / "train_draws.npy").tolist() == [1, 2, 1]
    one, other = (np.load(root / "train_Y.npy") for root in (tmp_path, finished))
    assert (one != other).any(axis=(1, 2)).tolist() == [False, True, False]


def test_a_sample_without_any_flow_is_named_and_leaves_no_set(serial, tmp_path, monkeypatch):
    monkeypatch.setattr(steady_flow, "MAX_STEPS", 5)
    with pytest.raises(UserError, match=r"^train sample 0: no flow found for 10 random airfoils"):
        fill(tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    assert not (tmp_path / "card.json").exists()


def test_a_fold_in_a_grid_is_told_with_its_sample(serial, tmp_path):
    def folded(rngs, resolution, device):
        nodes = torch.from_numpy(solver.airfoil_nodes(np.zeros(8), resolution))[None]
        solver.solve_airfoil(nodes.flip(2))

    with pytest.raises(UserError, match=r"^train sample 0: the grid folds over itself"):
        fill(tmp_path, replace(RECIPE, make_batch=folded))


def test_the_registry_and_the_recipes_carry_the_published_protocol():
    usual = DATASETS["airfoil"].config.make({})
    assert (usual.train, usual.test, usual.stride, DATASETS["airfoil"].resolution) == (1000, 200, 1, 221)
    assert RECIPE.shapes(221)["Q"] == (5, 221, 51)
    ours, theirs = (RECIPES[f"airfoil/{name}"]() for name in ("linearno", "transolver"))
    assert (ours.training.clip, theirs.training.clip) == (1.0, 0.1)
    for recipe in (ours, theirs):
        training = recipe.training
        assert (training.batch, training.weight_decay, training.schedule, training.epochs) == (
            4,
            1e-5,
            "onecycle",
            500,
        )
        assert (recipe.model.slices, recipe.model.width, recipe.model.mlp_ratio) == (64, 128, 1)
        assert (training.precision, training.loss.gradient_weight) == ("bf16", 0)


@pytest.mark.parametrize("model", ["linearno", "transolver"])
def test_a_recipe_trains_on_airfoils_and_keeps_the_places_of_each_case(finished, tmp_path, model):
    sizes = ["model.width=16", "model.depth=1", "model.heads=2", "model.slices=4", "training.epochs=1"]
    data = [f"data.root={finished}", "data.train=3", "data.test=2", "training.precision=fp32"]
    metrics = run(override(RECIPES[f"airfoil/{model}"](), [*sizes, *data]), tmp_path, torch.device("cpu"))
    assert 0 < metrics["relative_l2"]["mean"] < 5
    cases, y = np.load(tmp_path / "figures" / "cases.npz"), np.load(finished / "test_Y.npy")
    for at, sample in enumerate(cases["sample"]):
        np.testing.assert_allclose(cases["coords"][at, :, 1], y[sample].ravel(), rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_set_of_the_cpu_to_its_tolerance(finished, tmp_path):
    generate_airfoil(
        tmp_path, sizes=SIZES, resolution=RESOLUTION, seed=1, workers=1, tick=lambda n: None, device="cuda"
    )
    for field in ("X", "Y", "theta"):
        np.testing.assert_array_equal(
            np.load(tmp_path / f"test_{field}.npy"), np.load(finished / f"test_{field}.npy")
        )
    np.testing.assert_allclose(np.load(tmp_path / "test_Q.npy"), np.load(finished / "test_Q.npy"), atol=1e-4)
