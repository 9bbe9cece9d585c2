from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import DATASETS, Scaler
from linearno.data.elasticity import FILES, ElasticityConfig, generate_elasticity, open_elasticity
from linearno.data.generation import generate as module
from linearno.data.generation.card import read_card
from linearno.solvers.unit_cell import cached_unit_cell, void_radius
from tests.data.files import Stopped, edit, stop_after

SIZES = {"train": 4, "test": 2}


def config(root, **settings) -> ElasticityConfig:
    return ElasticityConfig.make({"root": root, **SIZES, **settings})


def fill(root, **settings) -> list[int]:
    ticks: list[int] = []
    usual = {"sizes": SIZES, "resolution": 10, "seed": 0, "workers": 1, "tick": ticks.append}
    generate_elasticity(root, **{**usual, **settings})
    return ticks


@pytest.fixture
def made(serial, tmp_path) -> Path:
    """A folder with a finished set."""
    fill(tmp_path / "made")
    return tmp_path / "made"


def arrays(root) -> dict[str, np.ndarray]:
    """As the published files have them: both splits in one array, samples last, float64."""
    fields = {
        field: np.concatenate([np.load(root / f"{split}_{field}.npy") for split in SIZES]).astype(float)
        for field in FILES.published
    }
    return {field: np.moveaxis(values, 0, -1) for field, values in fields.items()}


def publish(fields: dict[str, np.ndarray], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for field, values in fields.items():
        np.save(folder / FILES.published[field], values)
    return folder


@pytest.fixture
def published(made, tmp_path) -> Path:
    """The same numbers as published files."""
    return publish(arrays(made), tmp_path / "published")


def test_the_set_on_disk_has_the_published_fields_samples_first(made):
    shapes = {name: facts.shape for name, facts in read_card(made, how="").files.items()}
    assert {name: shape for name, shape in shapes.items() if name.startswith("train")} == {
        "train_xy.npy": (4, 972, 2),
        "train_sigma.npy": (4, 972),
        "train_rr.npy": (4, 42),
        "train_theta.npy": (4, 10),
    }
    assert np.load(made / "train_sigma.npy").dtype == np.float32


def test_every_sample_has_its_own_points_and_no_inputs(made):
    train, test, source = open_elasticity(config(made))
    np.testing.assert_array_equal(train.coords, np.load(made / "train_xy.npy"))
    np.testing.assert_array_equal(train.targets[..., 0], np.load(made / "train_sigma.npy"))
    assert train.inputs is None
    assert (test.coords.shape, test.targets.shape) == ((2, 972, 2), (2, 972, 1))
    assert train.spec.outputs == ("stress",)
    assert train.spec.grid is None
    assert {train.coords.dtype, train.targets.dtype} == {torch.float32}
    assert "seed 0, resolution 10" in source


def test_only_the_stress_is_scaled_by_one_mean_and_one_deviation(made):
    train = open_elasticity(config(made)).train
    scaler = Scaler.fit(train.spec, train.everything())
    encoded = scaler.outputs.encode(train.targets)
    torch.testing.assert_close(scaler.coords.encode(train.coords), train.coords, rtol=0, atol=0)
    assert scaler.outputs.mean.numel() == 1
    assert abs(encoded.mean()) < 1e-4
    assert abs(encoded.std() - 1) < 1e-4


def test_a_stored_sample_is_the_stress_around_the_void_of_its_theta(made):
    theta = np.load(made / "test_theta.npy")[1].astype(float)
    again = cached_unit_cell(10).sample(theta)
    np.testing.assert_allclose(np.load(made / "test_sigma.npy")[1], again.sigma, rtol=1e-3)
    radius = void_radius(theta, np.linspace(0, 2 * np.pi, 42))
    np.testing.assert_allclose(np.load(made / "test_rr.npy")[1], radius, rtol=1e-5)


def test_the_protocol_trains_on_the_first_1000_and_tests_on_the_last_200():
    usual = DATASETS["elasticity"].config.make({})
    assert usual.sizes == {"train": 1000, "test": 200}
    assert DATASETS["elasticity"].resolution == 10


def test_the_first_are_trained_on_and_the_last_are_tested_on(made, published):
    sigma = arrays(made)["sigma"].T
    train, test, _ = open_elasticity(config(published, train=3, test=1))
    np.testing.assert_array_equal(train.targets[..., 0], sigma[:3])
    np.testing.assert_array_equal(test.targets[..., 0], sigma[-1:])
    test = open_elasticity(config(made, train=3, test=1)).test
    np.testing.assert_array_equal(test.targets[..., 0], sigma[-1:])


@pytest.mark.parametrize("folder", ["", "Meshes", "elasticity/Meshes"])
def test_published_files_give_what_the_generated_arrays_give(made, tmp_path, folder):
    publish(arrays(made), tmp_path / "root" / folder)
    ours, theirs = open_elasticity(config(made)), open_elasticity(config(tmp_path / "root"))
    for one, other in ((ours.train, theirs.train), (ours.test, theirs.test)):
        torch.testing.assert_close(one.coords, other.coords, rtol=0, atol=0)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=0)
        assert one.spec == other.spec
    assert "published files Random_UnitCell_XY_10.npy and Random_UnitCell_sigma_10.npy" in theirs.source
    assert FILES.verify(tmp_path / "root") == []


def test_where_both_lie_the_published_files_are_taken_unless_the_config_says_otherwise(made):
    publish(arrays(made), made)
    assert "published files" in open_elasticity(config(made)).source
    assert "generated by" in open_elasticity(config(made, source="generated")).source
    assert FILES.verify(made) == []


def test_a_missing_set_names_the_command_that_makes_it(tmp_path, published, monkeypatch):
    with pytest.raises(UserError, match=r"card.json does not exist; run `linearno data generate elasticity"):
        open_elasticity(config(tmp_path))
    with pytest.raises(UserError, match=r"XY_10.npy does not exist; fetch the published files again, or run"):
        open_elasticity(config(tmp_path, source="published"))
    assert len(FILES.verify(tmp_path)) == 1
    monkeypatch.setitem(FILES.published_sizes, "samples", 2000)
    lines = FILES.verify(published)
    assert [line.rpartition(": ")[2] for line in lines] == [
        "xy has shape (6, 972, 2); the published file has (2000, 972, 2)",
        "sigma has shape (6, 972); the published file has (2000, 972)",
    ]
    (published / FILES.published["sigma"]).unlink()
    with pytest.raises(UserError, match=r"sigma_10.npy does not exist"):
        open_elasticity(config(published))
    assert len(FILES.verify(published)) == 1


def test_too_few_samples_are_counted(made, published):
    with pytest.raises(UserError, match=r"XY_10.npy holds 6 samples of xy, fewer than train=5 and test=2"):
        open_elasticity(config(published, train=5))
    with pytest.raises(UserError, match=r"train_xy.npy holds 4 samples of xy, fewer than train=5"):
        open_elasticity(config(made, train=5))


@pytest.mark.parametrize("axes", [(2, 0, 1), (1, 0, 2), (0, 2, 1)])
def test_swapped_axes_of_the_published_points_are_reported(published, axes):
    path = published / FILES.published["xy"]
    np.save(path, np.load(path).transpose(axes))
    with pytest.raises(UserError, match=r"XY_10.npy: xy is float64 .*; expected real numbers \(972, 2, samp"):
        open_elasticity(config(published))
    assert len(FILES.verify(published)) == 1


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (np.zeros((6, 972)), r"sigma is float64 \(6, 972\); expected real numbers \(972, samples\)"),
        (np.zeros(972), r"sigma is float64 \(972,\)"),
        (np.zeros((972, 6), complex), "holds complex128"),
        (
            np.zeros((972, 5)),
            r"holds 5 samples of sigma, but .*XY_10.npy holds 6 of xy; expected as many",
        ),
    ],
)
def test_a_published_stress_that_does_not_fit_the_points_is_reported(published, values, complaint):
    np.save(published / FILES.published["sigma"], values)
    with pytest.raises(UserError, match=f"sigma_10.npy:? {complaint}"):
        open_elasticity(config(published))
    assert len(FILES.verify(published)) == 1


@pytest.mark.parametrize(("field", "shape"), [("xy", (2, 972)), ("xy", (2, 971, 2)), ("sigma", (2, 972, 1))])
def test_a_wrong_shape_of_a_generated_array_is_reported(made, field, shape):
    np.save(made / f"test_{field}.npy", np.zeros(shape, np.float32))
    with pytest.raises(
        UserError,
        match=rf"test_{field}.npy: {field} has shape .*; expected \(samples, points.* with points = 972",
    ):
        open_elasticity(config(made))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_named_with_file_and_sample(made, published, bad):
    edit(published / FILES.published["sigma"], (7, 5), bad)
    with pytest.raises(UserError, match=r"sigma_10.npy: sigma: sample 5 has NaN or infinite"):
        open_elasticity(config(published))
    edit(made / "train_xy.npy", (2, 7, 1), bad)
    with pytest.raises(UserError, match=r"train_xy.npy: xy: sample 2 has NaN or infinite"):
        open_elasticity(config(made))
    assert len(FILES.verify(published)) == len(FILES.verify(made)) == 1


def test_a_truncated_file_is_named(made, published):
    for path in (published / FILES.published["xy"], made / "test_sigma.npy"):
        path.write_bytes(path.read_bytes()[:300])
        with pytest.raises(UserError, match=f"{path.name} is truncated"):
            open_elasticity(config(path.parent))


def test_splits_differ_and_a_sample_depends_on_neither_the_size_of_its_set_nor_the_others(made, tmp_path):
    fill(tmp_path / "small", sizes={"train": 2, "test": 1})
    big, small = (np.load(root / "train_sigma.npy") for root in (made, tmp_path / "small"))
    np.testing.assert_array_equal(big[:2], small)
    assert not np.allclose(big[0], np.load(made / "test_sigma.npy")[0])


def test_a_stopped_generation_resumes_to_the_same_bytes(made, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RECORD_SECONDS", 0)
    with pytest.raises(Stopped):
        fill(tmp_path / "cut", tick=stop_after(3))
    assert fill(tmp_path / "cut") == [3, 1, 1, 1]
    assert read_card(tmp_path / "cut", how="").files == read_card(made, how="").files


def test_a_finer_set_has_four_times_as_many_points(serial, tmp_path):
    fill(tmp_path, sizes={"train": 1, "test": 1}, resolution=20)
    train = open_elasticity(config(tmp_path, train=1, test=1)).train
    assert train.coords.shape == (1, 4 * 972, 2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda theta, angles: np.full(len(angles), np.nan), "expected a void of finite radius"),
        (lambda theta, angles: np.full(len(angles), 0.6), "the void has radii from 0.6 to 0.6"),
        (lambda theta, angles: 0.25 + 0.2 * np.sin(20 * angles), r"quad \d+ of 108 is inverted"),
    ],
)
def test_a_sample_that_cannot_be_solved_is_named_and_leaves_no_set(
    serial, tmp_path, monkeypatch, change, complaint
):
    monkeypatch.setattr("linearno.solvers.unit_cell.void_radius", change)
    with pytest.raises(UserError, match=f"^train sample 0: {complaint}") as told:
        fill(tmp_path)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.glob("*.npy"))
    assert not (tmp_path / "card.json").exists()


def test_nonsense_is_refused_before_a_folder_is_made(tmp_path):
    for settings, complaint in (
        ({"resolution": 12}, "resolution 12 does not fit; .* a multiple of 10"),
        ({"sizes": {"train": 0}}, r"sizes\.train"),
        ({"device": "meta"}, "not supported"),
    ):
        with pytest.raises(UserError, match=complaint):
            fill(tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()
