"""What every registered model does, at a tiny size; `EXEMPT` says what it does not."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linearno import fit, load
from linearno.inference.export.trace import Surrogate, trace
from linearno.metrics.cost import count_flops
from linearno.models import self_fitting
from linearno.nn.protocol import completes, fixed_grid, takes_segments
from linearno.ops.ragged import offsets_of
from linearno.training import Interrupted
from tests.models.contract_models import (
    CASES,
    POINTS,
    build,
    data_of,
    entry_of,
    question,
    settings_of,
    task_of,
)

EXEMPT = {  # (property, case): why this model does not have it
    ("cost", "factformer"): "a kernel along an axis is quadratic in the points of that axis",
    ("order", "ono"): "landmarks are means over points that follow each other",
    ("export", "lrsa, mass"): "exported files take no auxiliary fields",
    ("order", "pod-gp"): "it takes points in the order of its training data",
    ("resume", "pod-gp"): "it is fitted at once, without weights that steps change",
}
TRAINING = {"epochs": 2, "batch": 2, "device": "cpu", "lr": 1e-2, "clip": None}
EXPORT_SIZES = [{"batch": 1, "points": 1, "observations": 1}, {"batch": 3, "points": 100, "observations": 21}]
IDLE = {"linearno": {"placeholder"}, "linearno, grid": {"placeholder"}}  # parameters for other inputs


def skip_exempt(what, case):
    if reason := EXEMPT.get((what, case)):
        pytest.skip(reason)


def weights(model):
    return {name: part.detach().clone() for name, part in model.state_dict().items()}


def train(case, **more):
    name = entry_of(case).name
    options = {"device": "cpu"} if self_fitting(name) else TRAINING
    return fit(name, data_of(case), settings=settings_of(case), task=task_of(case), **options | more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The bundle of a case after two epochs, and its folder."""
    made = {}

    def get(case):
        if case not in made:
            folder = tmp_path_factory.mktemp("contract") / "run"
            made[case] = train(case, out=folder), folder
        return made[case]

    return get


@pytest.mark.parametrize("case", CASES)
def test_every_argument_is_documented_and_a_paper_is_named(case):
    entry = entry_of(case)
    arguments = {*entry.config.model_fields, *entry.sizes} - {"name"}
    assert arguments <= entry.documented().keys()
    assert re.search(r"\(.*\b20\d\d", entry.summary)


@pytest.mark.parametrize("case", CASES)
def test_training_changes_every_weight_and_resumes_to_the_bit(case, trained, tmp_path):
    skip_exempt("resume", case)
    seen = []

    def stop(record):
        seen.append(record.loss)
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(case, out=tmp_path / "parts", on_epoch=stop)
    parts = train(case, out=tmp_path / "parts", on_epoch=lambda record: seen.append(record.loss))
    whole, _ = trained(case)
    assert len(seen) == 2
    assert torch.tensor(seen).isfinite().all()
    found, expected = weights(parts.model), weights(whole.model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    start = dict(build(case).named_parameters())
    same = {name for name, now in whole.model.named_parameters() if torch.equal(now.cpu(), start[name])}
    assert same == IDLE.get(case, set())


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_predicts_the_same(case, trained):
    bundle, folder = trained(case)
    data = data_of(case)
    loaded = load(folder)
    expected = bundle.predict_data(data, batch=2)
    assert expected.shape == data.targets.shape
    assert torch.equal(loaded.predict_data(data, batch=2), expected)


@pytest.mark.parametrize("case", CASES)
def test_bf16_trains_close_to_fp32(case, trained):
    skip_exempt("bf16", case)
    bundle, _ = trained(case)
    data = data_of(case)
    fp32 = bundle.predict_data(data, batch=2)
    bf16 = train(case, precision="bf16").predict_data(data, batch=2)
    assert ((bf16 - fp32).norm() / fp32.norm()).item() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if "," not in case])
def test_an_exported_graph_gives_what_the_model_gives_at_any_size(case, trained):
    skip_exempt("export", case)
    surrogate = Surrogate(trained(case)[0])
    graph = trace(surrogate).module()
    for sizes in EXPORT_SIZES:
        asked = surrogate.random_inputs(sizes)
        with torch.no_grad():
            found, expected = graph(**asked), surrogate(**asked)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_permuting_points_permutes_the_outputs(case):
    skip_exempt("order", case)
    model = build(case).double().eval()
    if fixed_grid(model) is not None:
        pytest.skip("the points of a grid have an order")
    (coords, inputs), more = question(model, POINTS)
    coords, inputs = coords.double(), inputs.double()
    more = {name: part.double() if part.is_floating_point() else part for name, part in more.items()}
    order, seen = torch.randperm(POINTS), torch.randperm(coords.shape[1])
    if not completes(model):
        seen = order
    moved = {name: part[:, order] if name == "points" else part[:, seen] for name, part in more.items()}
    expected = model(coords, inputs, **more)[:, order]
    torch.testing.assert_close(model(coords[:, seen], inputs[:, seen], **moved), expected)


@pytest.mark.parametrize("case", CASES)
def test_a_sample_does_not_see_the_others_of_its_batch(case):
    model = build(case).double().eval()
    (coords, inputs), more = question(model, POINTS, samples=3)
    coords, inputs = coords.double(), inputs.double()
    more = {name: part.double() if part.is_floating_point() else part for name, part in more.items()}
    alone = {name: part[1:2] for name, part in more.items()}
    expected = model(coords, inputs, **more)[1:2]
    torch.testing.assert_close(model(coords[1:2], inputs[1:2], **alone), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_cost_is_affine_in_the_number_of_points(case):
    """Equal steps in N cost equal numbers of FLOPs."""
    skip_exempt("cost", case)
    counts = []
    for rows in (32, 64, 96):
        model = build(case, (rows, 16))
        args, more = question(model, 16 * rows)
        counts.append(count_flops(model, *args, **more))
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0


@pytest.mark.parametrize("case", CASES)
def test_packed_meshes_are_computed_as_each_by_itself(case):
    model = build(case).double().eval()
    if not takes_segments(model):
        pytest.skip("takes meshes of one size")
    if fixed_grid(model) is not None:
        pytest.skip("the grid is fixed")
    sizes = [5, 1, 24]
    (coords, inputs), more = question(model, sum(sizes), samples=1)
    coords, inputs = coords.double().requires_grad_(), inputs.double()
    more = {name: part.double() if part.is_floating_point() else part for name, part in more.items()}
    apart = [
        model(x, a, **dict(zip(more, own, strict=True)))
        for x, a, *own in zip(
            *(part.split(sizes, dim=1) for part in (coords, inputs, *more.values())), strict=True
        )
    ]
    packed = model(coords, inputs, **more, segments=offsets_of(sizes))
    torch.testing.assert_close(packed, torch.cat(apart, dim=1))
    slopes = [torch.autograd.grad(out.square().sum(), coords)[0] for out in (packed, torch.cat(apart, dim=1))]
    torch.testing.assert_close(*slopes)


@pytest.mark.slow
def test_every_model_compiles_as_one_graph():
    script = Path(__file__).with_name("compiled_contract.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    failures = json.loads(ended.stdout.splitlines()[-1])
    assert {case for case in failures if ("compile", case) not in EXEMPT} == set(), failures
