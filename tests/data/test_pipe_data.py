import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS, Scaler
from linearno.data.card import read_card
from linearno.data.generate import Plan, generate
from linearno.data.pipe import PUBLISHED, RECIPE, PipeConfig, generate_pipe, open_pipe, verify_pipe
from linearno.experiment import run
from linearno.recipes import RECIPES
from linearno.solvers import pipe as solver
from tests.data.files import edit, make_here, publish

SIZES = {"train": 3, "test": 2}
RESOLUTION = 9


def fill(root: Path, recipe=RECIPE, **settings) -> None:
    plan = Plan.make({"seed": 0, "resolution": RESOLUTION, "sizes": SIZES} | settings)
    generate(recipe, root, plan, workers=1, tick=lambda n: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished set, 3 + 2 pipes at 9×9, to be read only."""
    root = tmp_path_factory.mktemp("pipe")
    return make_here(generate_pipe, root, sizes=SIZES, resolution=RESOLUTION, seed=0)


@pytest.fixture
def made(finished, tmp_path) -> Path:
    """A copy to break."""
    return shutil.copytree(finished, tmp_path / "made")


@pytest.fixture
def published(finished, tmp_path) -> Path:
    """The same five pipes under the published names, in float64: train, two more, test."""
    return publish(finished, PUBLISHED, tmp_path / "published", lambda train, test: [train, test[::-1], test])


def config(root, **settings) -> PipeConfig:
    return PipeConfig.make({"root": root, **SIZES, **settings})


def test_the_set_on_disk_has_the_published_fields_and_which_draw_was_kept(finished):
    card = read_card(finished, how="")
    assert {name: facts.shape for name, facts in card.files.items() if name.startswith("train")} == {
        "train_X.npy": (3, 9, 9),
        "train_Y.npy": (3, 9, 9),
        "train_Q.npy": (3, 3, 9, 9),
        "train_draws.npy": (3,),
    }
    assert (card.name, card.resolution) == ("pipe", 9)
    assert np.load(finished / "train_draws.npy").tolist() == [1, 1, 1]
    assert verify_pipe(finished) == []


def test_points_run_across_the_pipe_and_then_along_it_with_the_speed_there(finished):
    train, test, source = open_pipe(config(finished))
    x, y, q = (np.load(finished / f"train_{field}.npy") for field in "XYQ")
    for k in range(81):
        i, j = divmod(k, 9)
        assert train.coords[1, k].tolist() == [x[1, i, j], y[1, i, j]]
        assert train.targets[1, k].item() == q[1, 0, i, j]
    assert (train.coords.shape, train.inputs, test.targets.shape) == ((3, 81, 2), None, (2, 81, 1))
    assert (train.spec.coords, train.spec.inputs, train.spec.outputs) == (("x", "y"), (), ("ux",))
    assert (train.spec.grid, train.spec.scaled) == ((9, 9), ("coords", "outputs"))
    assert "seed 0, resolution 9" in source


def test_coordinates_and_speed_are_scaled_by_the_training_split(finished):
    train = open_pipe(config(finished)).train
    scaler = Scaler.fit(train.spec, train.everything())
    encoded = scaler.coords.encode(train.coords).flatten(0, 1)
    torch.testing.assert_close(encoded.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(encoded.std(dim=0), torch.ones(2), rtol=0, atol=1e-5)
    assert scaler.outputs.std.item() == pytest.approx(train.targets.std().item(), rel=1e-5)


def test_fewer_points_can_be_asked_for(finished):
    train, _, _ = open_pipe(config(finished, stride=4))
    q = np.load(finished / "train_Q.npy")
    np.testing.assert_array_equal(train.targets.reshape(3, 3, 3), q[:, 0, ::4, ::4])
    with pytest.raises(UserError, match=r"stride=3 does not fit .*these do: 1, 2, 4, 8"):
        open_pipe(config(finished, stride=3))


@pytest.mark.parametrize(("test_split", "first"), [("last200", 5), ("next200", 3)])
def test_published_files_are_tested_on_where_the_config_says(published, test_split, first):
    speed = np.load(published / "Pipe_Q.npy")[:, 0].reshape(7, -1).astype(np.float32)
    train, test, source = open_pipe(config(published, test_split=test_split))
    np.testing.assert_array_equal(test.targets[..., 0], speed[first : first + 2])
    np.testing.assert_array_equal(train.targets[..., 0], speed[:3])
    assert test.targets.dtype == test.coords.dtype == torch.float32
    assert source == (
        f"published files Pipe_X.npy, Pipe_Y.npy, Pipe_Q.npy in {published}, "
        f"tested on samples {first} to {first + 1}"
    )
    assert verify_pipe(published) == []


def test_published_files_hold_what_a_generated_set_holds(published, finished):
    for split in SIZES:
        one, other = getattr(open_pipe(config(finished)), split), getattr(open_pipe(config(published)), split)
        torch.testing.assert_close(one.coords, other.coords, rtol=0, atol=0)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=0)


def test_where_both_lie_the_published_files_are_taken_unless_the_config_says_otherwise(made, published):
    for name in PUBLISHED.values():
        (made / name).write_bytes((published / name).read_bytes())
    assert "published files" in open_pipe(config(made)).source
    assert "generated by linearno" in open_pipe(config(made, source="generated")).source


def test_only_what_is_asked_for_is_read_of_a_published_file(published):
    """Channels beside the speed and samples of no split may be broken, until `verify` looks."""
    edit(published / "Pipe_Q.npy", (0, 2, 0, 0), np.nan)
    edit(published / "Pipe_Q.npy", (4, 0, 0, 0), np.nan)
    open_pipe(config(published))
    assert verify_pipe(published) == [
        f"{published}/Pipe_Q.npy: Q: sample 0 has NaN or infinite values; fetch the file again"
    ]


@pytest.mark.parametrize(
    ("field", "change", "complaint"),
    [
        (
            "Q",
            lambda q: q[:6],
            r"Q.npy holds 6 samples of Q, but .*X.npy holds 7 of X; expected as many",
        ),
        ("Q", lambda q: np.moveaxis(q, 1, -1), r"Q has shape \(7, 9, 9, 3\); expected \(samples, 3, n, n\)"),
        ("Q", lambda q: q[:, :2], r"Pipe_Q.npy: Q has 2 channels; expected 3: ux, uy, p"),
        (
            "X",
            lambda x: x.swapaxes(1, 2),
            r"Pipe_X.npy: X of sample 0 does not grow along axis 1; exp",
        ),
        ("Y", lambda y: y[:, :, ::-1], r"Pipe_Y.npy: Y of sample 0 does not grow along axis 2"),
        ("Y", lambda y: y[:, :5, :5], r"Pipe_Y.npy: Y has shape \(7, 5, 5\); expected \(samples, n, n\)"),
        ("X", lambda x: x[0], r"Pipe_X.npy: X has shape \(9, 9\)"),
    ],
)
def test_published_files_that_do_not_fit_are_told_in_one_line(published, field, change, complaint):
    path = published / PUBLISHED[field]
    np.save(path, np.ascontiguousarray(change(np.load(path))))
    with pytest.raises(UserError, match=complaint) as caught:
        open_pipe(config(published))
    assert "\n" not in str(caught.value)


def test_a_number_that_is_not_finite_is_named_with_file_and_sample(made, published):
    edit(made / "test_Y.npy", (1, 4, 4), np.nan)
    with pytest.raises(UserError, match=r"test_Y.npy: Y: sample 1 has NaN or infinite"):
        open_pipe(config(made))
    edit(published / "Pipe_Q.npy", (6, 0, 4, 4), np.inf)
    with pytest.raises(UserError, match=r"Pipe_Q.npy: Q: sample 6 has NaN or infinite"):
        open_pipe(config(published))


def test_too_few_samples_are_counted_over_both_splits_of_a_file(made, published):
    with pytest.raises(UserError, match=r"train_X.npy holds 3 samples of X, but train=4 were asked for"):
        open_pipe(config(made, train=4))
    with pytest.raises(UserError, match=r"Pipe_X.npy holds 7 samples of X, but train=6 and test=2"):
        open_pipe(config(published, train=6))


def test_a_missing_or_truncated_file_is_named_with_what_to_do(tmp_path, published):
    with pytest.raises(UserError, match=r"card.json does not exist; run `linearno data generate pipe --out"):
        open_pipe(config(tmp_path / "nowhere"))
    path = published / "Pipe_Y.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"Pipe_Y.npy is truncated or not a .npy file; fetch"):
        open_pipe(config(published))
    path.unlink()
    with pytest.raises(UserError, match=r"Pipe_Y.npy does not exist; fetch the published files again"):
        open_pipe(config(published))
    assert len(verify_pipe(published)) == 1


def test_an_unknown_place_of_the_test_is_refused(tmp_path):
    with pytest.raises(UserError, match="test_split"):
        config(tmp_path, test_split="first200")


def test_a_set_that_was_stopped_goes_on_to_the_same_bytes(serial, finished, tmp_path):
    calls = iter(range(2))

    def stop(*args):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return RECIPE.make_batch(*args)

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, replace(RECIPE, make_batch=stop))
    fill(tmp_path)
    assert read_card(tmp_path, how="").files == read_card(finished, how="").files


def test_a_pipe_that_is_drawn_again_keeps_its_number_and_leaves_the_others_alone(
    serial, finished, tmp_path, monkeypatch
):
    solve, calls = solver._newton, []

    def second_pipe_fails_once(*args):
        calls.append(1)
        flow, solved = solve(*args)
        return flow, solved & (len(calls) != 2)

    monkeypatch.setattr(solver, "_newton", second_pipe_fails_once)
    fill(tmp_path)
    assert np.load(tmp_path / "train_draws.npy").tolist() == [1, 2, 1]
    one, other = (np.load(root / "train_Y.npy") for root in (tmp_path, finished))
    changed = (one != other).any(axis=(1, 2)).tolist()
    assert changed == [False, True, False]


def test_a_sample_without_any_flow_is_named_and_leaves_no_set(serial, tmp_path, monkeypatch):
    monkeypatch.setattr(solver, "MAX_STEPS", 1)
    with pytest.raises(UserError, match=r"^train sample 0: no flow found for 10 random pipes"):
        fill(tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    assert not (tmp_path / "card.json").exists()


def test_the_registry_and_the_recipes_carry_the_published_protocol():
    usual = DATASETS["pipe"].config.make({})
    assert (usual.train, usual.test, usual.stride, DATASETS["pipe"].resolution) == (1000, 200, 1, 129)
    assert RECIPE.shapes(129)["Q"] == (3, 129, 129)
    ours, theirs = (RECIPES[f"pipe/{name}"]() for name in ("linearno", "transolver"))
    assert (ours.data.test_split, theirs.data.test_split) == ("last200", "next200")
    assert (ours.training.batch, ours.training.clip, ours.model.mlp_ratio) == (4, 1.0, 1)
    assert (theirs.training.batch, theirs.training.clip, theirs.model.mlp_ratio) == (8, 0.1, 2)
    for recipe in (ours, theirs):
        training = recipe.training
        assert (training.weight_decay, training.schedule, training.epochs) == (1e-5, "onecycle", 500)
        assert (training.precision, training.checkpoint_seconds, training.loss.gradient_weight) == (
            "bf16",
            30,
            0,
        )


@pytest.mark.parametrize("model", ["linearno", "transolver"])
def test_a_recipe_trains_on_pipes_and_keeps_the_places_of_each_case(finished, tmp_path, model):
    sizes = ["model.width=16", "model.depth=1", "model.heads=2", "model.slices=4", "training.epochs=1"]
    data = [f"data.root={finished}", "data.train=3", "data.test=2", "training.precision=fp32"]
    metrics = run(override(RECIPES[f"pipe/{model}"](), [*sizes, *data]), tmp_path, torch.device("cpu"))
    assert 0 < metrics["relative_l2"]["mean"] < 5
    cases, y = np.load(tmp_path / "figures" / "cases.npz"), np.load(finished / "test_Y.npy")
    for at, sample in enumerate(cases["sample"]):
        np.testing.assert_allclose(cases["coords"][at, :, 1], y[sample].ravel(), rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_set_of_the_cpu_to_rounding(finished, tmp_path):
    generate_pipe(
        tmp_path, sizes=SIZES, resolution=RESOLUTION, seed=0, workers=1, tick=lambda n: None, device="cuda"
    )
    for field in ("X", "Y"):
        np.testing.assert_array_equal(
            np.load(tmp_path / f"test_{field}.npy"), np.load(finished / f"test_{field}.npy")
        )
    np.testing.assert_allclose(np.load(tmp_path / "test_Q.npy"), np.load(finished / "test_Q.npy"), atol=1e-6)
