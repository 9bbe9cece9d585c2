"""ShapeNet-Car: rows of a sample, drag, both layouts of the files, and damaged files."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.data import shapenet_car_generation as generation
from linearno.data.generation import generate
from linearno.data.legacy_vtk import QUAD, Grid, read_grid, write_grid
from linearno.data.shapenet_car import ShapeNetCarConfig, open_shapenet_car
from linearno.data.shapenet_car_files import FOLD_SIZES, find_cars, fold_of, read_car, write_car
from linearno.data.shapenet_car_metrics import (
    drag_coefficient,
    drag_error,
    drag_error_shifted,
    drag_spearman,
    published_loss,
    surface,
    volume,
)
from linearno.data.shapenet_car_points import car_rows
from linearno.solvers.surface_distance import area_vectors
from tests.commands import linearno, refused
from tests.data.toy_cars import toy_car

HEXAHEDRA = np.arange(8)[None]


@pytest.fixture
def cars():
    rng = np.random.default_rng(0)
    return [toy_car(rng) for _ in range(5)]


def write_cars(root, cars):
    """Two cars in param0, the others in param1."""
    for index, car in enumerate(cars):
        write_car(
            root / f"param{min(index // 2, 1)}" / f"{index:032x}", car, 16, np.full((7, 3), 9.0), HEXAHEDRA
        )
    return root


def opened(root, **changes):
    return open_shapenet_car(ShapeNetCarConfig.make({"root": root, "train": 3, "test": 2} | changes))


def test_rows_are_nodes_off_the_surface_and_then_its_points(cars):
    car, rows = cars[0], car_rows(cars[0])
    on = len(car.points) // 3
    np.testing.assert_array_equal(rows.coords, np.concatenate([car.nodes[on:], car.points]))
    np.testing.assert_array_equal(rows.targets[:, 3], np.r_[np.zeros(len(car.nodes) - on), car.pressure])
    np.testing.assert_array_equal(rows.targets[: -rows.surface, :3], car.velocity[on:])
    assert not rows.targets[-rows.surface :, :3].any()
    off = slice(0, -rows.surface)
    foot = rows.coords[off] - rows.inputs[off, :1] * rows.inputs[off, 1:]
    gap = np.linalg.norm(foot[:, None] - car.points, axis=-1).min(axis=1)
    np.testing.assert_allclose(gap, 0, atol=1e-5)  # the normal leads to the nearest point of the surface
    np.testing.assert_allclose(np.linalg.norm(rows.inputs[:, 1:], axis=1), 1, atol=1e-5)
    assert (rows.inputs[-rows.surface :, 1:] * car.points).sum(axis=1).min() > 0


def test_velocity_on_the_surface_is_that_of_the_coinciding_nodes(cars):
    car = cars[0]
    velocity = car.velocity.copy()
    velocity[3] = 1, 2, 3
    rows = car_rows(car._replace(velocity=velocity))
    np.testing.assert_array_equal(rows.targets[-rows.surface :, :3][3], [1, 2, 3])


def test_files_are_read_back_to_the_bit_without_unused_points(tmp_path, cars):
    car = cars[0]
    write_car(tmp_path / "car", car, 16, np.full((7, 3), 9.0), HEXAHEDRA)
    assert len(read_grid(tmp_path / "car" / "quadpress_smpl.vtk").points) == len(car.points) + 7
    for found, expected in zip(read_car(tmp_path / "car"), car, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert np.load(tmp_path / "car" / "velo.npy").shape == (3 * len(car.nodes),)


def test_a_generated_set_and_its_export_have_the_same_samples(tmp_path, cars):
    splits = opened(write_cars(tmp_path, cars))
    assert splits.source.startswith("published files")
    assert (len(splits.train), len(splits.test)) == (3, 2)
    expected = car_rows(cars[0])
    np.testing.assert_array_equal(splits.test.targets[0], expected.targets)
    assert splits.test.surface[0].sum() == expected.surface
    flipped = cars[0]._replace(quads=cars[0].quads[:, ::-1])  # files may have inward normals
    write_car(tmp_path / "param0" / f"{0:032x}", flipped, 16, np.full((7, 3), 9.0), HEXAHEDRA)
    np.testing.assert_array_equal(opened(tmp_path).test.inputs[0], expected.inputs)


def test_separate_statistics_mask_what_is_no_target(tmp_path, cars):
    root = write_cars(tmp_path, cars)
    published, separate = opened(root).train, opened(root, statistics="separate").train
    marks = published.surface
    assert torch.equal(separate.targets[..., 3].isnan(), ~marks)
    assert torch.equal(separate.targets[..., 0].isnan(), marks)
    pressure = published.targets[..., 3][marks]
    assert separate.aux["loss_scale"][0, 3] == pytest.approx(float(pressure.std()), rel=1e-5)
    assert published.aux["loss_scale"][0, 3] == pytest.approx(
        float(published.targets[..., 3].std()), rel=1e-5
    )
    batch = separate.everything()
    known = batch._replace(targets=batch.targets.nan_to_num())
    guess = known.targets + torch.randn_like(known.targets) * ~batch.targets.isnan()
    error = (guess - known.targets).square()
    assert published_loss(guess, known).shape == (3,)
    spread = published.targets[..., :3][~marks].view(-1, 3).std(0)
    velocity = (error[..., :3][~marks].view(3, -1, 3) / spread**2).mean(dim=(1, 2))
    at_surface = error[..., 3][marks].view(3, -1).mean(1) / pressure.var()
    torch.testing.assert_close(published_loss(guess, known), velocity + 0.5 * at_surface, rtol=1e-4, atol=0)


def test_the_drag_is_that_of_the_quadrilaterals(tmp_path, cars):
    from scipy.spatial import ConvexHull

    test = opened(write_cars(tmp_path, cars)).test
    batch, car = test.everything(), cars[0]
    area = area_vectors(car.points.astype(float), car.quads)
    force = -(car.pressure[car.quads].mean(axis=1) * area[:, 2]).sum()
    front = ConvexHull(car.points[:, :2]).volume
    still = batch.targets.clone()
    still[..., :3] = 0
    found = drag_coefficient(still, batch)
    assert float(found[0]) == pytest.approx(2 / (20**2 * front * 0.3) * force, rel=1e-5)
    friction = drag_coefficient(batch.targets, batch) - found
    assert (friction.abs() < 0.01 * found.abs()).all()
    assert (friction != 0).all()
    assert not torch.equal(drag_coefficient(batch.targets, batch, shifted=True), friction + found)


def test_metrics_see_velocity_off_the_surface_and_pressure_on_it(tmp_path, cars):
    test = opened(write_cars(tmp_path, cars)).test
    batch, marks = test.everything(), test.surface
    for metric in (surface, volume, drag_error, drag_error_shifted):
        assert metric(batch.targets, batch).tolist() == [0, 0]
    wrong = batch.targets.clone()
    wrong[..., 3][marks] *= 1.1
    wrong[..., 3][~marks] = 7
    torch.testing.assert_close(surface(wrong, batch), torch.full((2,), 0.1))
    assert volume(wrong, batch).tolist() == [0, 0]
    torch.testing.assert_close(drag_error(wrong, batch), torch.full((2,), 0.1), rtol=0.02, atol=0)
    wrong = batch.targets.clone()
    wrong[..., :3] *= 1.2
    torch.testing.assert_close(volume(wrong, batch), torch.full((2,), 0.2))
    assert surface(wrong, batch).tolist() == [0, 0]
    assert drag_spearman(batch.targets, test) == pytest.approx(1)
    assert drag_spearman(batch.targets.flip(0), test) == pytest.approx(-1)


def test_cars_fill_the_folders_in_the_published_numbers():
    counts = np.bincount([fold_of("train", index) for index in range(789)], minlength=9)
    assert (fold_of("test", 99), sum(FOLD_SIZES)) == (0, 889)
    assert counts.tolist() == [0, *FOLD_SIZES[1:]]


def test_empty_folders_are_left_out(tmp_path, cars):
    (write_cars(tmp_path, cars) / "param1" / "empty").mkdir()
    assert [len(fold) for fold in find_cars(tmp_path).cars] == [2, 3, 0, 0, 0, 0, 0, 0, 0]
    assert len(opened(tmp_path).train) == 3


def damaged(root, what):
    car = root / "param1" / f"{3:032x}"
    if what == "missing":
        (car / "hexvelo_smpl.vtk").unlink()
    elif what == "empty":
        (car / "quadpress_smpl.vtk").write_text("")
    elif what == "truncated":
        text = (car / "hexvelo_smpl.vtk").read_text()
        (car / "hexvelo_smpl.vtk").write_text(text[: len(text) // 2])
    elif what == "counts":
        write_car(car, toy_car(np.random.default_rng(9), nodes=121), 16, np.full((7, 3), 9.0), HEXAHEDRA)
    elif what == "text":
        (car / "quadpress_smpl.vtk").write_text("pressure")
    elif what == "infinite":
        text = (car / "quadpress_smpl.vtk").read_text().splitlines()
        (car / "quadpress_smpl.vtk").write_text("\n".join([*text[:-1], "nan"]))
    return root


@pytest.mark.parametrize(("what", "message"), [
    ("missing", "hexvelo_smpl.vtk does not exist; fetch the file again"),
    ("empty", "quadpress_smpl.vtk is empty; fetch the file again"),
    ("truncated", "hexvelo_smpl.vtk (is truncated|has no)"),
    ("text", "quadpress_smpl.vtk is no ASCII VTK file"),
    ("infinite", "has NaN or infinite values"),
    ("counts", r"car 1 has 219 rows with 98 surface points, the first car has 218 with 98"),
])  # fmt: skip
def test_damaged_files_are_refused_in_one_line(tmp_path, cars, what, message):
    root = damaged(write_cars(tmp_path, cars), what)
    with pytest.raises(UserError, match=message) as caught:
        opened(root)
    assert "\n" not in str(caught.value)


def test_the_command_line_reports_damaged_folders(tmp_path, cars):
    root = damaged(write_cars(tmp_path, cars), "empty")
    code, message = linearno("data", "verify", "shapenet-car", "--root", root)
    assert code == 2
    assert "quadpress_smpl.vtk is empty" in message
    assert "param2 has 0 cars; the published folder has 97" in message


def test_too_few_cars_are_refused(tmp_path, cars):
    with pytest.raises(UserError, match=r"has 3 cars for data.train=4; lower data.train"):
        opened(write_cars(tmp_path, cars), train=4)
    with pytest.raises(UserError, match="no folder param0"):
        opened(tmp_path / "nothing", source="published")


def test_vtk_files_of_version_9_are_read(tmp_path):
    points = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
    write_grid(tmp_path / "old.vtk", Grid(points, np.array([[0, 1, 2, 3]]), None), QUAD, "none")
    text = (tmp_path / "old.vtk").read_text()
    new = "CELLS 2 4\nOFFSETS vtktypeint64\n0 4 \nCONNECTIVITY vtktypeint64\n0 1 2 3 \n"
    (tmp_path / "new.vtk").write_text(text.replace("CELLS 1 5\n4 0 1 2 3\n", new))
    np.testing.assert_array_equal(read_grid(tmp_path / "new.vtk").cells, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(read_grid(tmp_path / "new.vtk").points, points)


@pytest.fixture
def short(monkeypatch):
    """Channels of coarse cells, for a few steps."""
    tunnel_of = generation.tunnel_of
    monkeypatch.setattr(generation, "tunnel_of", lambda *args: replace(tunnel_of(*args), seconds=0.01))
    monkeypatch.setattr(generate, "process_map", lambda solve, batches, workers: map_lazily(solve, batches))


def map_lazily(solve, batches):
    for batch in batches:
        yield solve(batch)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_generated_cars_are_opened_and_exported(tmp_path):
    root, files = tmp_path / "set", tmp_path / "files"
    options = ["--train", "2", "--test", "1", "--resolution", "40", "--out", str(root), "--workers", "1"]
    assert linearno("data", "generate", "shapenet-car", *options)[0] == 0
    sizes = {"train": 2, "test": 1}
    generated = opened(root, **sizes)
    assert generated.train.coords.shape == (2, 32186, 3)
    assert int(generated.train.surface[0].sum()) == 3586
    code, printed = linearno("data", "export", "shapenet-car", "--root", root, "--out", files)
    assert (code, "3 samples" in printed) == (0, True), printed
    assert len(read_grid(next(files.glob("param0/*/quadpress_smpl.vtk"))).points) == 3682
    original = opened(files, **sizes)
    for split in ("train", "test"):
        ours, theirs = getattr(generated, split), getattr(original, split)
        order = [0] if split == "test" else sorted(range(2), key=lambda i: generation.car_name(split, i))
        assert torch.equal(ours.targets[order], theirs.targets)
        torch.testing.assert_close(ours.inputs[order], theirs.inputs)
        assert torch.equal(ours.coords[order], theirs.coords)
    assert "has cars already" in refused(
        "data", "export", "shapenet-car", "--root", str(root), "--out", str(files)
    )


@pytest.mark.usefixtures("short")
def test_a_diverging_car_is_named_and_leaves_no_files(tmp_path, monkeypatch):
    broken = generation.tunnel_of
    monkeypatch.setattr(generation, "tunnel_of", lambda *args: replace(broken(*args), slip=1e5, seconds=0.03))
    root = tmp_path / "set"
    message = refused(
        "data", "generate", "shapenet-car", "--train", "1", "--test", "1", "--resolution", "40",
        "--workers", "1", "--out", str(root),
    )  # fmt: skip
    assert "train sample 0: the flow around" in message
    assert "diverged" in message
    assert not root.exists()


@pytest.mark.parametrize(("resolution", "message"), [
    ("41", "expected an even number of cells"), ("20", "40 to 256"),
])  # fmt: skip
def test_a_resolution_that_does_not_fit_is_refused(tmp_path, resolution, message):
    out = str(tmp_path / "set")
    assert message in refused("data", "generate", "shapenet-car", "--resolution", resolution, "--out", out)


def test_other_benchmarks_are_not_exported(tmp_path):
    assert "shapenet-car is" in refused("data", "export", "darcy", "--out", str(tmp_path))
    assert DATASETS["darcy"].export is None
