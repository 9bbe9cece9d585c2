"""Which points of a mesh are trained on."""

import pytest
import torch

from linearno.core.randomness import torch_generator
from linearno.data import Batch, FieldData, FieldSpec
from linearno.data.point_sampling import draw_points, points_and_surface

SPEC = FieldSpec(coords=("x",), inputs=("a",), outputs=("u",))


def draw(points, count, first=None, place=0):
    return draw_points(points, count, torch_generator(0, place), first)


def test_distinct_points_in_their_order_as_many_as_requested_or_all():
    drawn = draw(50, 20)
    assert len(drawn) == 20
    assert torch.equal(drawn, drawn.unique())
    assert torch.equal(draw(7, 20), torch.arange(7))
    assert not torch.equal(drawn, draw(50, 20, place=1))
    assert torch.equal(drawn, draw(50, 20))


def test_every_point_is_drawn_as_often_as_any_other():
    counts = torch.zeros(12)
    for place in range(3000):
        counts[draw(12, 4, place=place)] += 1
    assert counts.sum() == 12000
    assert ((counts / 1000 - 1).abs() < 0.13).all()  # five deviations of a share of one third


def test_points_of_the_surface_are_all_kept_and_the_rest_is_drawn():
    surface = torch.arange(40) % 5 == 0
    drawn = draw(40, 20, surface)
    assert len(drawn) == 20
    assert set(surface.nonzero().flatten().tolist()) <= set(drawn.tolist())
    assert not torch.equal(drawn, draw(40, 20, surface, place=1))


def test_where_the_surface_has_more_points_than_requested_some_of_them_are_drawn():
    surface = torch.arange(40) % 2 == 0
    drawn = draw(40, 6, surface)
    assert len(drawn) == 6
    assert surface[drawn].all()
    assert not torch.equal(drawn, draw(40, 6, surface, place=1))


@pytest.mark.parametrize("form", ["packed", "of each", "shared"])
def test_a_batch_of_kept_points_holds_these_points(form):
    torch.manual_seed(0)
    sizes = [9, 9, 9] if form != "packed" else [4, 9, 6]
    coords = [torch.rand(sizes[0], 1)] * 3 if form == "shared" else [torch.rand(n, 1) for n in sizes]
    samples = [Batch(x, torch.rand(len(x), 1), torch.rand(len(x), 1)) for x in coords]
    if form == "packed":
        data = FieldData.pack(SPEC, samples)
    else:
        inputs, targets = (torch.stack([getattr(s, part) for s in samples]) for part in ("inputs", "targets"))
        data = FieldData(SPEC, coords[0] if form == "shared" else torch.stack(coords), inputs, targets)
    kept = [torch.tensor([1, 3]), torch.tensor([0, 2])]
    batch = data.batch(torch.tensor([2, 0]), kept)
    for part in ("coords", "inputs", "targets"):
        expected = [getattr(samples[i], part)[own] for i, own in zip((2, 0), kept, strict=True)]
        packed = torch.cat(expected)[None] if form == "packed" else torch.stack(expected)
        assert torch.equal(getattr(batch, part), packed)
    assert batch.size == 2
    if form == "packed":
        assert batch.segments.tolist() == [0, 2, 4]


def test_each_sample_knows_its_points_and_its_surface():
    samples = [Batch(torch.rand(n, 1), torch.rand(n, 1), torch.rand(n, 1)) for n in (4, 9)]
    marks = [torch.rand(n) > 0.5 for n in (4, 9)]
    packed = FieldData.pack(SPEC, samples, marks)
    fields = torch.rand(2, 5, 1), torch.rand(2, 5, 1)
    shared = FieldData(SPEC, torch.rand(5, 1), *fields, surface=torch.rand(5) > 0.5)
    of_each = FieldData(SPEC, torch.rand(2, 5, 1), *fields, surface=torch.rand(2, 5) > 0.5)
    for data, count, own in (
        (packed, 9, marks[1]),
        (shared, 5, shared.surface),
        (of_each, 5, of_each.surface[1]),
    ):
        points, surface = points_and_surface(data, 1)
        assert points == count
        assert torch.equal(surface, own)
