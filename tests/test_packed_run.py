"""A run on meshes of different sizes: from data to a number, a picture and an answer."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from linearno import load
from linearno.core.errors import UserError
from linearno.data import DATASETS, Batch, Benchmark, DataConfig, FieldData, FieldSpec, Splits
from linearno.experiment import evaluate, run
from linearno.metrics import relative_l2
from linearno.report.gallery import GalleryCard, write_gallery
from linearno.report.run_folder import read_run
from linearno.run_config import RunConfig
from linearno.training.predict import mean_field_error
from tests.commands import linearno

SPEC = FieldSpec(
    coords=("x", "y"), inputs=("a",), outputs=("u", "v"), units={"u": "m"}, standardised=("inputs", "outputs")
)
SETTINGS = {
    "recipe": "discs/linearno",
    "data": {"name": "discs", "root": "nowhere", "train": 6, "test": 5},
    "model": {"name": "linearno", "width": 8, "depth": 2, "heads": 2, "slices": 4},
    "training": {
        "epochs": 2,
        "batch": 4,
        "points": 30,
        "keep_surface": True,
        "eval_batch": 2,
        "validation": 1,
    },
}


class DiscsConfig(DataConfig):
    name: Literal["discs"] = "discs"


def discs(samples: int, seed: int) -> FieldData:
    """Discs of some ten to some hundred points; those near the rim are the surface."""
    generator = torch.Generator().manual_seed(seed)
    meshes, rims = [], []
    for size in torch.randint(10, 120, (samples,), generator=generator).tolist():
        radius, angle = torch.rand(2, size, generator=generator)
        coords = radius.sqrt()[:, None] * torch.stack([(6.3 * angle).cos(), (6.3 * angle).sin()], dim=1)
        inputs = torch.rand(size, 1, generator=generator)
        meshes.append(Batch(coords, inputs, 1 + torch.cat([inputs * coords[:, :1], coords[:, 1:]], dim=1)))
        rims.append(radius > 0.9)
    return FieldData.pack(SPEC, meshes, rims)


def splits(cfg: DiscsConfig) -> Splits:
    return Splits(discs(cfg.train, 0), discs(cfg.test, 1), "drawn")


@pytest.fixture(scope="module", autouse=True)
def known():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS._entries, "discs", Benchmark("discs", DiscsConfig, splits, lambda _: []))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "discs"
    run(RunConfig.make(SETTINGS), folder, torch.device("cpu"))
    return folder


def test_the_error_of_every_mesh_is_that_of_its_own_answer(finished):
    bundle, test = load(finished), discs(5, 1)
    assert bundle.coords is None
    rows = (finished / "per_sample.csv").read_text().splitlines()[1:]
    errors = [float(row.split(",")[1]) for row in rows]
    for error, start, stop in zip(errors, test.offsets[:-1], test.offsets[1:], strict=True):
        answer = bundle.predict(test.inputs[None, start:stop], test.coords[start:stop])
        assert error == pytest.approx(relative_l2(answer, test.targets[None, start:stop]).item(), rel=1e-4)
    metrics = json.loads((finished / "metrics.json").read_text())
    assert metrics["samples"] == 5
    assert metrics["relative_l2"]["mean"] == pytest.approx(np.mean(errors), rel=1e-6)


def test_packed_meshes_are_predicted_as_one_by_one(finished):
    bundle, test = load(finished), discs(5, 1)
    together = bundle.predict(test.inputs, test.coords, segments=test.offsets, batch=3)
    assert together.shape == test.targets.shape
    for start, stop in zip(test.offsets[:-1], test.offsets[1:], strict=True):
        alone = bundle.predict(test.inputs[None, start:stop], test.coords[start:stop])[0]
        torch.testing.assert_close(together[start:stop], alone, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="trained on many meshes: give the coordinates"):
        bundle.predict(test.inputs, segments=test.offsets)


def test_the_mean_field_is_the_mean_of_each_channel():
    both = splits(RunConfig.make(SETTINGS).data)
    mean = both.train.targets.mean(dim=0)
    truths = both.test.targets.split(both.test.offsets.diff().tolist())
    errors = [((mean - truth).norm() / truth.norm()).item() for truth in truths]
    assert mean_field_error(both) == pytest.approx(np.mean(errors), rel=1e-5)


def test_the_cases_are_the_best_the_median_and_the_worst_mesh(finished):
    cases, test = read_run(finished, "discs").cases, discs(5, 1)
    sizes = test.offsets.diff().tolist()
    assert [len(coords) for coords in cases.coords] == [sizes[i] for i in cases.sample]
    assert len(set(map(len, cases.coords))) == 3
    assert cases.error[0] <= cases.error[1] <= cases.error[2]
    for place, sample in enumerate(cases.sample):
        truth = torch.from_numpy(cases.targets[place])
        assert torch.equal(truth, test.targets.split(sizes)[sample])
        error = relative_l2(torch.from_numpy(cases.predictions[place])[None], truth[None]).item()
        assert error == pytest.approx(cases.error[place], rel=1e-5)
    assert cases.slices.phi_slice.shape == (2, 2, len(cases.coords[1]))


@pytest.mark.slow
def test_the_page_and_the_gallery_show_them(finished, tmp_path):
    code, output = linearno("report", finished, "-o", tmp_path / "page.html")
    assert code == 0, output
    page = (tmp_path / "page.html").read_text()
    assert page.count("u as truth, prediction and absolute error") == 3
    points = len(read_run(finished, "discs").cases.coords[1])
    shown = GalleryCard("discs", "Discs", "What?", finished, tmp_path / "page.html", 1.0)
    write_gallery(tmp_path / "gallery.html", [shown], {})
    assert f"of {points} points" in (tmp_path / "gallery.html").read_text()


def test_evaluated_again_it_has_the_same_error(finished, tmp_path):
    before = json.loads((finished / "metrics.json").read_text())["relative_l2"]
    config = RunConfig.make(SETTINGS)
    again = evaluate(load(finished), config, splits(config.data), tmp_path)
    assert again["relative_l2"] == pytest.approx(before)


def test_offsets_that_do_not_fit_are_named(finished, tmp_path):
    with np.load(finished / "figures" / "cases.npz") as disk:
        arrays = dict(disk)
    (tmp_path / "figures").mkdir()
    (tmp_path / "model.json").write_text((finished / "model.json").read_text())
    total = len(arrays["coords"])
    for offsets, words in (
        ([0, 5, total - 1], "do not run from 0"),
        ([0, 0, 7, total], "leave a case without points"),
        ([], "do not run from 0"),
        ([0, 5, total], r"sample has shape \(3,\), expected \(2,\)"),
    ):
        wrong = arrays | {"offsets": np.array(offsets, dtype=np.int64)}
        np.savez(tmp_path / "figures" / "cases.npz", **wrong)
        with pytest.raises(UserError, match=words):
            read_run(tmp_path, "discs")
