"""Meshes of different sizes in one split."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec

SPEC = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))
SIZES = [5, 1, 17, 8]


def meshes(sizes=SIZES, inputs=True):
    torch.manual_seed(0)
    return [Batch(torch.rand(n, 2), torch.rand(n, 1) if inputs else None, torch.rand(n, 1)) for n in sizes]


def assert_same(found: Batch, expected: list[Batch]):
    assert found.segments.tolist() == [0, *torch.tensor([len(s.coords) for s in expected]).cumsum(0).tolist()]
    assert found.size == len(expected)
    for part in ("coords", "inputs", "targets"):
        assert torch.equal(getattr(found, part), torch.cat([getattr(s, part) for s in expected])[None])


def test_a_batch_contains_the_selected_meshes_one_after_another():
    samples = meshes()
    data = FieldData.pack(SPEC, samples)
    assert len(data) == 4
    assert data.offsets.tolist() == [0, 5, 6, 23, 31]
    assert_same(data.everything(), samples)
    assert_same(data.batch(torch.tensor([2, 0])), [samples[2], samples[0]])
    assert_same(data.batch(slice(1, 3)), samples[1:3])
    assert_same(data.subset(torch.tensor([3, 1])).everything(), [samples[3], samples[1]])


def test_marks_of_a_surface_follow_their_samples():
    samples = meshes()
    marks = [torch.arange(len(sample.coords)) % 3 == 0 for sample in samples]
    data = FieldData.pack(SPEC, samples, marks)
    assert torch.equal(data.subset(torch.tensor([2, 0])).surface, torch.cat([marks[2], marks[0]]))
    of_each = FieldData(SPEC, torch.rand(3, 4, 2), None, torch.rand(3, 4, 1), surface=torch.rand(3, 4) > 0.5)
    assert torch.equal(of_each.subset(torch.tensor([2, 0])).surface, of_each.surface[[2, 0]])
    shared = FieldData(SPEC, torch.rand(4, 2), None, torch.rand(3, 4, 1), surface=torch.rand(4) > 0.5)
    assert torch.equal(shared.subset(torch.tensor([2, 0])).surface, shared.surface)


def test_meshes_without_inputs_are_packed():
    assert FieldData.pack(SPEC.model_copy(update={"inputs": ()}), meshes(inputs=False)).inputs is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FieldData.pack(SPEC, []), "no samples"),
        (lambda: FieldData.pack(SPEC, meshes([3, 0, 2])), "segment 1 has 0 points"),
        (lambda: FieldData.pack(SPEC, meshes(inputs=False)), "sample 0: inputs are nothing"),
        (
            lambda: FieldData.pack(SPEC, [s._replace(targets=s.targets[1:]) for s in meshes()]),
            r"outputs are \(4, 1\), expected \(points, channels\) = \(5, 1\)",
        ),
        (
            lambda: FieldData(SPEC, torch.rand(5, 2), None, torch.rand(5, 1), torch.tensor([0, 2, 6])),
            "got 0 to 6",
        ),
        (
            lambda: FieldData(SPEC, torch.rand(5, 2), None, torch.rand(4, 1), torch.tensor([0, 5])),
            "of the same points",
        ),
        (lambda: FieldData.pack(SPEC, meshes([3, 2]), [torch.ones(n).bool() for n in (2, 3)]), "of each"),
        (lambda: FieldData.pack(SPEC, meshes([3]), [torch.ones(3)]), "by true and false"),
        (
            lambda: FieldData(SPEC, torch.rand(4, 2), None, torch.rand(3, 4, 1), surface=torch.ones(3, 4)),
            r"surface marks \(3, 4\) points, the coordinates are of \(4,\)",
        ),
        (
            lambda: FieldData.pack(SPEC.model_copy(update={"grid": (2, 3)}), meshes([6, 6])),
            "no grid in common",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()
