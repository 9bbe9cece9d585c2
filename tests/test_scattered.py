"""Runs on points that lie differently in every sample: from disk to a number, a picture and an answer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno import load
from linearno.core.config import override
from linearno.data import DATASETS
from linearno.experiment import run
from linearno.initialization import open_splits
from linearno.metrics import relative_l2
from linearno.recipes import RECIPES
from linearno.run_folder import open_run
from linearno.solvers.unit_cell import elasticity_sample, void_radius
from linearno.viz.mesh import triangulate
from tests.commands import linearno, refused

SMALL = ["model.width=16", "model.depth=1", "model.heads=2", "model.slices=6", "training.epochs=2"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    """6 + 3 unit cells with a void."""
    root = tmp_path_factory.mktemp("elasticity")
    sizes = {"train": 6, "test": 3}
    DATASETS["elasticity"].generate(root, sizes=sizes, resolution=10, seed=0, workers=1, tick=lambda n: None)
    return root


@pytest.fixture(scope="module")
def finished(cells, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "elasticity"
    changes = [*SMALL, f"data.root={cells}", "data.train=6", "data.test=3"]
    run(override(RECIPES["elasticity/linearno"](), changes), folder, torch.device("cpu"))
    return folder


@pytest.mark.parametrize("model", ["linearno", "transolver"])
def test_the_recipes_are_the_published_settings(model):
    config = RECIPES[f"elasticity/{model}"]()
    training = config.training
    assert (config.data.train, config.data.test) == (1000, 200)
    assert (training.epochs, training.batch, training.lr, training.weight_decay) == (500, 1, 1e-3, 1e-5)
    assert (training.schedule, training.schedule_every) == ("cosine", "epoch")
    assert training.clip == {"linearno": 1.0, "transolver": 0.1}[model]
    assert (training.loss.kind, training.loss.reduction) == ("relative_l2", "sum")


def test_the_error_is_that_of_the_stress_in_physical_units(finished):
    bundle, splits = load(finished), open_splits(open_run(finished).data)
    answer = bundle.predict(coords=splits.test.coords)
    metrics = json.loads((finished / "metrics.json").read_text())
    assert abs(metrics["relative_l2"]["mean"] / relative_l2(answer, splits.test.targets).mean() - 1) < 1e-4
    assert bundle.coords is None  # every sample has its own


def test_predict_answers_at_the_points_of_each_sample(finished, cells, tmp_path):
    coords = np.load(cells / "test_xy.npy")
    np.savez(tmp_path / "question.npz", coords=coords)
    code, output = linearno("predict", finished, tmp_path / "question.npz", "-o", tmp_path / "answer.npz")
    assert code == 0, output
    with np.load(tmp_path / "answer.npz") as answer:
        expected = load(finished).predict(coords=torch.from_numpy(coords))
        np.testing.assert_allclose(answer["stress"], expected[..., 0], rtol=1e-5)
    np.savez(tmp_path / "empty.npz", sigma=coords)
    assert "holds no 'coords'" in refused("predict", finished, tmp_path / "empty.npz")


def test_the_report_shows_the_cases(finished, tmp_path):
    code, output = linearno("report", finished, "-o", tmp_path / "page.html")
    assert code == 0, output
    page = (tmp_path / "page.html").read_text()
    assert "input the points; stress as truth, prediction and absolute error" in page


def test_a_picture_shows_the_body_and_leaves_its_void_empty():
    """Also where the void is not convex, and points on both sides of it see each other."""
    for seed in range(60):
        sample = elasticity_sample(np.random.default_rng([31, seed]), 10)
        corners = sample.xy[triangulate(sample.xy).get_masked_triangles()]
        (x1, y1), (x2, y2) = (corners[:, 1] - corners[:, 0]).T, (corners[:, 2] - corners[:, 0]).T
        area = np.abs(x1 * y2 - x2 * y1) / 2
        away = corners.mean(axis=1) - 0.5
        radius = void_radius(sample.theta, np.arctan2(away[:, 1], away[:, 0]))
        assert area[np.hypot(*away.T) < radius].sum() < 0.01
        body = 1 - np.pi * (sample.rr[:-1] ** 2).mean()
        assert 0.9 < area.sum() / body < 1.0  # Gauss points lie a little inside the border
