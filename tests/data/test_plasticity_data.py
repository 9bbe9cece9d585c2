import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS, PlasticityConfig, Scaler
from linearno.data.generation import generate as module
from linearno.data.generation.card import read_card
from linearno.data.plasticity import FILES, generate_plasticity, open_plasticity, unit_block
from linearno.experiment import run
from linearno.recipes import RECIPES
from linearno.solvers import forging
from tests.commands import linearno, refused
from tests.data.files import Stopped, edit, stop_after, write_v5, write_v73

CPU = torch.device("cpu")
(PUBLISHED,) = FILES.published_names
SIZES = {"train": 3, "test": 2}
ALONE = replace(generate_plasticity, batch_size=lambda *place, **chosen: 1)
COLUMNS, ROWS, FRAMES = 11, 4, 20
HEAVY = replace(forging.STEEL, density=1600 * forging.STEEL.density)  # a fortieth of the steps


@pytest.fixture(scope="module", autouse=True)
def quick():
    """A heavier block: the physics is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forging, "STEEL", HEAVY)
        patch.setattr(module, "process_map", lambda work, jobs, workers: (work(job) for job in jobs))
        yield


def fill(root: Path, generator=generate_plasticity, tick=lambda n: None, **settings) -> None:
    generator(root, **{"seed": 0, "resolution": COLUMNS, "sizes": SIZES, "workers": 1} | settings, tick=tick)


@pytest.fixture(scope="module")
def finished(quick, tmp_path_factory) -> Path:
    """A finished set, 3 + 2 blocks at 11×4, to be read only."""
    root = tmp_path_factory.mktemp("plasticity")
    generate_plasticity(root, sizes=SIZES, resolution=COLUMNS, seed=0, workers=1, tick=lambda n: None)
    return root


@pytest.fixture
def made(finished, tmp_path) -> Path:
    """A copy to break."""
    return shutil.copytree(finished, tmp_path / "made")


def stored(root: Path) -> dict[str, np.ndarray]:
    """The samples of both splits as the published file has them: train, two more, test."""
    arrays = {}
    for field in ("input", "output"):
        train, test = (np.load(root / f"{split}_{field}.npy").astype(float) for split in SIZES)
        arrays[field] = np.concatenate([train, test[::-1], test])
    return arrays


@pytest.fixture
def published(finished, tmp_path, monkeypatch) -> Path:
    """A file of the published name and layout, of seven blocks at 11×4."""
    monkeypatch.setitem(FILES.published_sizes, "samples", 7)
    monkeypatch.setitem(FILES.published_sizes, "n", COLUMNS)
    root = tmp_path / "published"
    root.mkdir()
    write_v73(root / PUBLISHED, stored(finished))
    return root


def config(root, **settings) -> PlasticityConfig:
    return PlasticityConfig.make({"root": root, **SIZES, **settings})


def test_the_set_on_disk_has_the_published_fields_and_which_draw_was_kept(finished):
    card = read_card(finished, how="")
    assert {name: facts.shape for name, facts in card.files.items() if name.startswith("train")} == {
        "train_input.npy": (3, COLUMNS),
        "train_output.npy": (3, COLUMNS, ROWS, FRAMES, 4),
        "train_draws.npy": (3,),
    }
    assert (card.name, card.resolution, card.units["output"]) == ("plasticity", COLUMNS, "mm")
    assert "rho u_tt = div sigma" in card.equation
    assert DATASETS["plasticity"].verify(finished) == []
    assert generate_plasticity.shapes(101)["output"] == (101, 31, 20, 4)


def test_points_run_down_and_then_leftwards_with_their_frames_side_by_side(finished):
    train, test, source = open_plasticity(config(finished, coords="aligned"))
    output, die = np.load(finished / "train_output.npy"), np.load(finished / "train_input.npy")
    for k in (0, 3, 4, 30, 43):
        i, j = divmod(k, ROWS)
        assert train.targets[1, k].tolist() == output[1, i, j].ravel().tolist()
        assert train.coords[k].tolist() == pytest.approx([i / 10, j / 3])
        assert train.inputs[1, k].item() == die[1, i]
    assert (train.targets.shape, test.inputs.shape) == ((3, 44, 80), (2, 44, 1))
    spec = train.spec
    assert (spec.outputs[:5], spec.outputs[-1]) == (("x0", "y0", "ux0", "uy0", "x1"), "uy19")
    assert (spec.position_outputs[:3], len(spec.position_outputs)) == (("x0", "y0", "x1"), 40)
    assert (spec.grid, spec.standardised, spec.unit("x3"), spec.unit("s")) == (
        (COLUMNS, ROWS),
        ("inputs",),
        "mm",
        "dimensionless",
    )
    assert "seed 0, resolution 11" in source


def test_the_two_particulars_of_the_published_protocol_can_be_mended(finished):
    usual, mended = config(finished), config(finished, coords="aligned", die="aligned")
    (one, _, words), (other, _, mended_words) = open_plasticity(usual), open_plasticity(mended)
    assert words.endswith("; coordinates scrambled, die reversed")
    assert mended_words.endswith("; coordinates aligned, die aligned")
    assert (one.spec.inputs, other.spec.inputs) == (("die_reversed",), ("die",))
    x, y = np.meshgrid(np.linspace(0, 1, COLUMNS), np.linspace(0, 1, ROWS))  # as published: shape (4, 11)
    np.testing.assert_allclose(one.coords, np.c_[x.ravel(), y.ravel()], rtol=1e-6)
    assert torch.equal(one.targets, other.targets)
    assert not torch.equal(one.coords, other.coords)
    np.testing.assert_array_equal(
        one.inputs.reshape(3, COLUMNS, ROWS), other.inputs.reshape(3, COLUMNS, ROWS).flip(1)
    )
    # mended, the die is where the block is pressed: its lowest point above the lowest part of the top
    places = other.targets.reshape(3, COLUMNS, ROWS, FRAMES, 4)
    pressed = places[:, :, 0, -1, 3].argmin(dim=1)
    heights = other.inputs.reshape(3, COLUMNS, ROWS)[:, :, 0]
    chosen = heights.gather(1, pressed[:, None])[:, 0]
    assert (chosen - heights.amin(dim=1) < 1.5).all()


def test_scrambled_coordinates_are_those_of_the_published_grid():
    scrambled, aligned = (unit_block(101, 31, scrambled=flag) for flag in (True, False))
    assert scrambled[102].tolist() == pytest.approx([1 / 100, 1 / 30])
    assert aligned[32].tolist() == pytest.approx([1 / 100, 1 / 30])
    assert {tuple(p) for p in scrambled.tolist()} == {tuple(p) for p in aligned.tolist()}


def test_only_the_die_is_scaled(finished):
    train = open_plasticity(config(finished)).train
    task = RECIPES["plasticity/linearno"]().task
    asked = task.spec(train.spec)
    scaler = Scaler.fit(asked, task.scaling_batch(train.everything(), asked))
    assert scaler.inputs.mean.item() == pytest.approx(train.inputs.mean().item(), rel=1e-5)
    assert scaler.inputs.std.item() == pytest.approx(train.inputs.std().item(), rel=1e-5)
    assert scaler.outputs.std.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("write", [write_v5, write_v73])
def test_a_published_file_is_tested_on_its_last_samples(finished, published, write):
    write(published / PUBLISHED, stored(finished))
    ours, theirs = open_plasticity(config(finished)), open_plasticity(config(published))
    for split in SIZES:
        one, other = getattr(ours, split), getattr(theirs, split)
        torch.testing.assert_close(one.inputs, other.inputs, rtol=0, atol=0)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=0)
    assert theirs.test.targets.dtype == torch.float32
    assert f"published files {PUBLISHED} in {published}" in theirs.source
    assert DATASETS["plasticity"].verify(published) == []


@pytest.mark.parametrize(
    ("field", "change", "complaint"),
    [
        ("both", lambda a: a[:6], r"input has shape \(6, 11\); the published file has \(7, 11\)"),
        (
            "output",
            lambda a: a[:, :, :, :19],
            r"output has shape \(7, 11, 4, 19, 4\); the published file has \(7, 11, 4, 20, 4\)",
        ),
        (
            "output",
            lambda o: o.swapaxes(1, 2),
            r"output has shape \(7, 4, 11, 20, 4\); expected \(sam",
        ),
        (
            "output",
            lambda o: o.swapaxes(3, 4),
            r"output has shape \(7, 11, 4, 4, 20\); expected \(samples, n, rows, frames, 4\)",
        ),
        (
            "output",
            lambda o: o[:, :, :3],
            r"has shape \(7, 11, 3, 20, 4\); expected 4 rows for 11 columns",
        ),
        ("output", lambda o: o[..., [2, 3, 0, 1]], r"output of sample 0 is no block with its points"),
        ("output", lambda o: o[:, ::-1], r"output of sample 0 is no block .* from right to left"),
        ("output", lambda o: o[..., 0], r"output has shape \(7, 11, 4, 20\); expected \(samples, n, rows"),
        ("input", lambda i: i[:, :9], r"input has shape \(7, 9\); the published file has \(7, 11\)"),
    ],
)
def test_a_published_file_that_does_not_fit_is_reported_in_one_line(
    finished, published, field, change, complaint
):
    arrays = stored(finished)
    for name in arrays if field == "both" else [field]:
        arrays[name] = np.ascontiguousarray(change(arrays[name]))
    write_v73(published / PUBLISHED, arrays)
    with pytest.raises(UserError, match=complaint) as caught:
        open_plasticity(config(published))
    assert "\n" not in str(caught.value)
    assert DATASETS["plasticity"].verify(published)


def test_the_published_file_has_987_samples_of_101_columns(tmp_path):
    write_v73(tmp_path / PUBLISHED, {"input": np.zeros((986, 101)), "output": np.zeros((986, 101, 31, 1, 4))})
    with pytest.raises(UserError, match=r"input has shape \(986, 101\); the published file has \(987, 101\)"):
        open_plasticity(config(tmp_path))


def test_a_number_that_is_not_finite_is_named_with_file_and_sample(made, finished, published):
    edit(made / "test_output.npy", (1, 4, 2, 3, 0), np.nan)
    with pytest.raises(UserError, match=r"test_output.npy: output: sample 1 has NaN or infinite"):
        open_plasticity(config(made))
    arrays = stored(finished)
    arrays["input"][6, 3] = np.inf
    write_v73(published / PUBLISHED, arrays)
    with pytest.raises(UserError, match=rf"{PUBLISHED}: input: sample 6 has NaN or infinite"):
        open_plasticity(config(published))
    assert len(DATASETS["plasticity"].verify(published)) == 1


def test_too_few_samples_and_missing_files_are_named_with_what_to_do(made, tmp_path):
    with pytest.raises(UserError, match=r"train_input.npy holds 3 samples of input, fewer than train=4"):
        open_plasticity(config(made, train=4))
    with pytest.raises(UserError, match=r"run `linearno data generate plasticity --out"):
        open_plasticity(config(tmp_path / "nowhere"))


def test_a_changed_file_does_not_fit_its_card(made):
    edit(made / "train_output.npy", (0, 0, 0, 0, 0), 3.0)
    complaint = refused("data", "verify", "plasticity", "--root", made)
    assert "train_output.npy is not the file that was made: its sha256 differs from the card" in complaint


def test_a_set_that_was_stopped_resumes_to_the_same_bytes(finished, tmp_path):
    with pytest.raises(Stopped):
        fill(tmp_path, ALONE, tick=stop_after(2))
    fill(tmp_path, ALONE)
    assert read_card(tmp_path, how="").files == read_card(finished, how="").files


def test_samples_made_together_have_the_bytes_of_samples_made_alone(finished, tmp_path):
    """Small ones are made together."""
    assert generate_plasticity.batch_size(11, CPU, scheme="plain") > 4
    assert generate_plasticity.batch_size(1001, CPU, scheme="plain") == 1
    fill(tmp_path, ALONE)
    assert read_card(tmp_path, how="").files == read_card(finished, how="").files


def test_a_set_of_the_fine_scheme_has_the_same_dies_and_says_what_it_is(finished, tmp_path):
    fill(tmp_path, scheme="fine")
    fine, plain = (read_card(root, how="") for root in (tmp_path, finished))
    assert (fine.scheme, plain.scheme) == ("fine", "plain")
    assert fine.files["train_input.npy"] == plain.files["train_input.npy"]
    assert fine.files["train_output.npy"].shape == plain.files["train_output.npy"].shape
    assert fine.files["train_output.npy"].sha256 != plain.files["train_output.npy"].sha256
    assert "four elements in the place of one" in fine.solver
    assert "(seed 0, resolution 11, fine)" in open_plasticity(config(tmp_path)).source
    assert generate_plasticity.batch_size(51, CPU, scheme="fine") < generate_plasticity.batch_size(
        51, CPU, scheme="plain"
    )


def test_a_block_that_cannot_be_forged_is_named_and_leaves_no_set(tmp_path, monkeypatch):
    monkeypatch.setattr(forging, "PENALTY", 5000.0)
    monkeypatch.setattr(forging, "MAX_SAMPLE_DRAWS", 1)
    complaint = refused(
        "data", "generate", "plasticity", "--train", 1, "--test", 1, "--resolution", 11, "--out", tmp_path
    )
    assert "train sample 0: elements fold under 1 random dies" in complaint
    assert not list(tmp_path.glob("*.npy"))
    assert not (tmp_path / "card.json").exists()


def test_a_resolution_that_makes_no_squares_is_refused(tmp_path):
    complaint = refused("data", "generate", "plasticity", "--train", 1, "--resolution", 20, "--out", tmp_path)
    assert "resolution 20 does not fit" in complaint


def test_the_registry_and_the_recipes_carry_the_published_protocol():
    usual = DATASETS["plasticity"].config.make({})
    assert (usual.train, usual.test, usual.coords, usual.die) == (900, 80, "scrambled", "reversed")
    ours, theirs = (RECIPES[f"plasticity/{name}"]() for name in ("linearno", "transolver"))
    assert (ours.training.weight_decay, ours.training.clip) == (1e-6, 1.0)
    assert (theirs.training.weight_decay, theirs.training.clip) == (1e-5, 0.1)
    for recipe in (ours, theirs):
        training = recipe.training
        assert (training.batch, training.epochs, training.schedule, training.lr) == (8, 500, "onecycle", 1e-3)
        assert (recipe.task.name, recipe.task.updates, recipe.task.channels) == ("timed", "frame", 4)
        assert (recipe.model.time, recipe.model.stem) == (True, "conv")
    quick = RECIPES["plasticity/linearno-at-once"]()
    assert quick.task.updates == "batch"
    assert quick.model == ours.model
    assert quick.training == ours.training


@pytest.mark.parametrize("name", ["linearno", "transolver", "linearno-at-once"])
def test_a_recipe_trains_on_blocks_and_is_judged_by_all_frames_together(finished, tmp_path, name):
    sizes = ["model.width=16", "model.depth=1", "model.heads=2", "model.slices=4", "training.epochs=1"]
    data = [f"data.root={finished}", "data.train=3", "data.test=2", "training.precision=fp32"]
    metrics = run(override(RECIPES[f"plasticity/{name}"](), [*sizes, *data]), tmp_path, torch.device("cpu"))
    assert 0 < metrics["relative_l2"]["mean"] < 5
    assert len(metrics["relative_l2_by_frame"]) == FRAMES
    cases = np.load(tmp_path / "figures" / "cases.npz")
    assert cases["predictions"].shape == (3, 44, 80)
    wrong = np.linalg.norm((cases["predictions"] - cases["targets"]).reshape(3, -1), axis=1)
    np.testing.assert_allclose(
        cases["error"], wrong / np.linalg.norm(cases["targets"].reshape(3, -1), axis=1), rtol=1e-5
    )
    question, answer = tmp_path / "die.npz", tmp_path / "answer.npz"
    np.savez(question, die_reversed=np.full((2, COLUMNS, ROWS), 17.0))
    code, output = linearno("predict", tmp_path, question, "-o", answer)
    assert code == 0, output
    with np.load(answer) as told:
        assert len(told.files) == 80
        assert told["uy19"].shape == (2, COLUMNS, ROWS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_set_of_the_cpu_to_rounding(finished, tmp_path):
    settings = {"sizes": SIZES, "resolution": COLUMNS, "seed": 0, "workers": 1, "tick": lambda n: None}
    generate_plasticity(tmp_path, **settings, device="cuda")
    one, other = (np.load(root / "test_input.npy") for root in (tmp_path, finished))
    np.testing.assert_array_equal(one, other)
    one, other = (np.load(root / "test_output.npy") for root in (tmp_path, finished))
    np.testing.assert_allclose(one[..., :5, :], other[..., :5, :], atol=1e-3)
