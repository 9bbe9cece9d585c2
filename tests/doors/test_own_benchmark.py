"""A benchmark in one file: its loss, metrics and summaries see the whole batch, and models get its fields."""

import csv
import json
from dataclasses import replace
from textwrap import dedent

import pytest
import torch

from linearno import load
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import DATASETS, Benchmark
from linearno.experiment import run
from linearno.models import import_definitions
from linearno.recipes import RECIPES, recipe
from linearno.training import TrainingConfig
from linearno.training.losses import LossConfig, make_loss, require_loss
from tests.commands import linearno, refused
from tests.truths import batch_of

CPU = torch.device("cpu")
RINGS = dedent(
    '''
    """Rings of points: the flow around each, from an inflow speed; every ring has a size of its own."""

    from pathlib import Path
    from typing import Literal

    import torch
    from torch import nn

    from linearno import model
    from linearno.data import DATASETS, Batch, Benchmark, DataConfig, FieldData, FieldSpec, Splits


    class RingsConfig(DataConfig):
        name: Literal["rings"] = "rings"
        root: Path = Path("nowhere")
        train: int = 6
        test: int = 4
        sizes_differ: bool = True

    SPEC = FieldSpec(
        coords=("x", "y"),
        outputs=("p", "q"),
        standardised=("outputs",),
        aux={"edges": "edge", "normals": "point", "areas": "point", "inflow": "sample"},
    )


    def ring(points, seed):
        angle = torch.arange(points) * 2 * torch.pi / points
        normals = torch.stack([angle.cos(), angle.sin()], dim=-1)
        inflow = 1 + torch.rand(1, generator=torch.Generator().manual_seed(seed))
        fields = torch.stack([inflow * angle.cos(), inflow * angle.sin() ** 2], dim=-1)
        edges = torch.stack([torch.arange(points), (torch.arange(points) + 1) % points])
        areas = torch.full((points, 1), 2 * torch.pi / points)
        aux = {"edges": edges, "normals": normals, "areas": areas, "inflow": inflow}
        return Batch(normals, None, fields, aux=aux)


    def open_rings(config):
        def split(count, first):
            sizes = [8 + 3 * i * config.sizes_differ for i in range(count)]
            samples = [ring(n, first + i) for i, n in enumerate(sizes)]
            return FieldData.pack(SPEC, samples, [torch.arange(n) % 2 == 0 for n in sizes])

        return Splits(split(config.train, 0), split(config.test, 100), "rings of points")


    def drag(values, batch):
        """The pressure force along x, one value per ring."""
        force = values[..., :1] * batch.aux["normals"][..., :1] * batch.aux["areas"]
        return torch.stack([part.sum() for part in force.split(batch.segments.diff().tolist(), dim=1)])


    def surface_and_volume(prediction, batch):
        """Squared error, that on the surface four times as heavy."""
        weight = 1 + 3 * batch.surface[..., None]
        error = weight * (prediction - batch.targets).square()
        return torch.stack([part.mean() for part in error.split(batch.segments.diff().tolist(), dim=1)])


    def drag_error(prediction, batch):
        truth = drag(batch.targets, batch)
        return (drag(prediction, batch) - truth).abs() / truth.abs()


    def drag_rank(prediction, data):
        """Spearman's rank correlation of drag over the test set."""
        batch = data.everything()
        ranks = [drag(v, batch).argsort().argsort().double() for v in (prediction[None], data.targets[None])]
        return torch.corrcoef(torch.stack(ranks))[0, 1].item()


    DATASETS.register("rings")(
        Benchmark(
            summary="Flow around rings of points",
            config=RingsConfig,
            open=open_rings,
            verify=lambda root: [],
            protocol={"epochs": 3, "batch": 2, "lr": 1e-2, "loss": {"kind": "benchmark"}},
            loss=surface_and_volume,
            metrics={"drag_error": drag_error, "surface_volume": surface_and_volume},
            summaries={"drag_rank": drag_rank},
            models={"linearno": {"width": 16, "depth": 1, "heads": 2, "slices": 4}, "ring-net": {"width": 8}},
        )
    )


    @model("ring-net", needs=("edges", "inflow", "surface"))
    class RingNet(nn.Module):
        """Message passing along the ring, and the inflow at every point."""

        def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 16):
            super().__init__()
            self.lift = nn.Linear(coords + 2, width)
            self.head = nn.Linear(2 * width, outputs)

        def forward(self, coords, inputs=None, *, edges, inflow, surface, segments):
            sizes = segments.diff()
            speed = torch.repeat_interleave(inflow, sizes, dim=0)[None]
            h = self.lift(torch.cat([coords, speed, surface[..., None].to(coords)], dim=-1))[0].relu()
            heard = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
            return self.head(torch.cat([h, heard], dim=-1))[None]
    '''
)


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "rings_benchmark.py"
    path.write_text(RINGS)
    import_definitions([str(path)])
    return path


@pytest.mark.parametrize("model", ["linearno", "ring-net"])
def test_a_benchmark_of_ones_own_trains_and_is_judged_by_its_own_rules(rings, tmp_path, model):
    folder = tmp_path / "run"
    code, output = linearno("train", f"rings/{model}", "--import", rings, "--out", folder, "--device", "cpu")
    assert code == 0, output
    assert "test drag error" in output
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["metric"] == "drag_error"
    assert set(metrics["summaries"]) == {"drag_rank"}
    assert -1 <= metrics["summaries"]["drag_rank"] <= 1
    with (folder / "per_sample.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["sample", "drag_error", "surface_volume", "relative_l2"]
    assert len(rows) == 4
    code, output = linearno("report", folder)
    assert code == 0, output


def test_the_data_verbs_import_a_benchmark_of_ones_own(tmp_path):
    path = tmp_path / "discs.py"
    path.write_text(RINGS.replace('"rings"', '"discs"').replace('"ring-net"', '"disc-net"'))
    line = refused("data", "verify", "discs")
    assert "discs" in line
    code, output = linearno("data", "verify", "discs", "--root", tmp_path, "--import", path)
    assert (code, output.strip()) == (0, f"{tmp_path}: no problems found")
    code, output = linearno("data", "list", "--import", path)
    assert code == 0, output
    assert "Flow around rings of points" in output
    assert "discs has no solver" in refused("data", "generate", "discs", "--resolution", 5, "--import", path)


def test_the_loss_that_is_minimised_is_the_benchmarks(rings, tmp_path):
    config = override(
        recipe("rings", "linearno"), ["training.epochs=1", "training.batch=6", "training.lr=1e-9"]
    )
    run(config, tmp_path / "run", CPU)
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    bundle, data = load(tmp_path / "run"), DATASETS["rings"].open(config.data).train
    prediction = bundle.predict_data(data)[None]
    own = DATASETS["rings"].loss(prediction, data.everything())
    assert history[0]["loss"] == pytest.approx(own.mean().item(), rel=1e-3)


def test_fields_that_a_model_needs_are_given_to_predict(rings, tmp_path):
    run(recipe("rings", "ring-net"), tmp_path / "run", CPU)
    bundle = load(tmp_path / "run")
    with pytest.raises(UserError, match=r"this model needs edges: give aux=\{'edges'"):
        bundle.predict(coords=torch.rand(1, 5, 2))
    with pytest.raises(
        UserError, match="'edgse' is no auxiliary field of this model's data; those are: edges"
    ):
        bundle.predict(coords=torch.rand(1, 5, 2), aux={"edgse": torch.zeros(2, 3, dtype=torch.int64)})


def test_every_pair_is_a_recipe_and_a_variant_changes_more_than_the_model():
    assert recipe("elasticity", "transolver").training.clip == 0.1
    assert recipe("darcy", "transolver").model.unified.ref == 8
    assert recipe("burgers1", "linearno").task.ratio == 0.01
    assert recipe("pipe", "transolver").data.test_split == "next200"
    assert "darcy/cross-linearno" not in RECIPES
    with pytest.raises(
        UserError, match=r"task=direct does not fit model=cross-linearno: set task\.name=completion"
    ):
        RECIPES["darcy/cross-linearno"]().require_task_fits_model()
    for name in RECIPES:
        assert RECIPES[name]().recipe == name
        assert RECIPES[name].__doc__


def test_a_benchmark_without_metrics_is_refused(tmp_path):
    with pytest.raises(UserError, match="a benchmark needs a metric"):
        replace(DATASETS["darcy"], metrics={})
    path = tmp_path / "no_metrics.py"
    path.write_text(
        RINGS.replace('"rings"', '"rings2"')
        .replace('"ring-net"', '"ring-net2"')
        .replace('metrics={"drag_error": drag_error, "surface_volume": surface_and_volume}', "metrics={}")
    )
    line = refused("train", "rings2/linearno", "--import", path)
    assert "a benchmark needs a metric" in line


def test_a_metric_with_another_number_of_values_is_named(rings, tmp_path, monkeypatch):
    bench = DATASETS["rings"]

    def total(prediction, batch):
        return (prediction - batch.targets).sum().view(1)

    monkeypatch.setitem(DATASETS._entries, "rings", Benchmark(**{**vars(bench), "metrics": {"total": total}}))
    with pytest.raises(UserError, match=r"metric total gave \(1,\) for 2 samples; expected one value"):
        run(recipe("rings", "linearno"), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()  # before training


def test_a_loss_of_the_benchmark_needs_one():
    with pytest.raises(UserError, match="these data define no loss; use relative_l2 or mse"):
        require_loss(LossConfig(kind="benchmark"), None)
    with pytest.raises(UserError, match=r"training\.loss\.kind=benchmark has no gradient term"):
        require_loss(LossConfig(kind="benchmark", gradient_weight=0.1), (2, 2), own=lambda p, b: p)
    loss = make_loss(LossConfig(kind="benchmark"), None, own=lambda p, b: (p - b.targets).abs().amax((1, 2)))
    truth = torch.zeros(2, 3, 1)
    prediction = torch.tensor([[1.0, 2, 3], [0, 0, 5]])[..., None]
    assert loss(prediction, batch_of(truth)) == 8
    assert TrainingConfig.make({"loss": {"kind": "benchmark"}}).loss.kind == "benchmark"
