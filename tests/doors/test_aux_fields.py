"""Auxiliary fields of a data set reach batches with their samples: points, samples, edges."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import Batch, FieldData, FieldSpec

KINDS = {"edges": "edge", "normals": "point", "inflow": "sample"}
SPEC = FieldSpec(coords=("x", "y"), outputs=("u",), aux=KINDS)
LINE = torch.tensor([[0, 1, 2], [1, 2, 3]])  # four points in a row


def numbered(*shape):
    return torch.arange(float(torch.tensor(shape).prod())).view(shape)


@pytest.fixture
def shared():
    """Five samples at four points that they share, and the same edges."""
    aux = {"edges": LINE, "normals": numbered(4, 2), "inflow": numbered(5, 1)}
    return FieldData(SPEC, numbered(4, 2), None, numbered(5, 4, 1), aux=aux)


@pytest.fixture
def packed():
    """Three meshes of 2, 4 and 3 points, each with edges between its neighbours."""
    samples = [
        Batch(
            coords=numbered(n, 2) + 100 * n,
            inputs=None,
            targets=numbered(n, 1) + 100 * n,
            aux={
                "edges": torch.stack([torch.arange(n - 1), torch.arange(1, n)]),
                "normals": numbered(n, 2) + 100 * n,
                "inflow": torch.tensor([float(n)]),
            },
        )
        for n in (2, 4, 3)
    ]
    marks = [torch.arange(n) == 0 for n in (2, 4, 3)]
    return FieldData.pack(SPEC, samples, marks)


def test_shared_edges_are_repeated_for_each_sample_of_a_batch(shared):
    batch = shared.batch(torch.tensor([3, 0]))
    assert batch.aux["edges"].tolist() == [[0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7]]
    assert torch.equal(batch.aux["normals"], shared.aux["normals"].expand(2, -1, -1))
    assert batch.aux["inflow"].tolist() == [[3.0], [0.0]]


def test_edges_of_a_batch_join_points_of_the_same_sample(packed):
    batch = packed.batch(torch.tensor([2, 1]))
    owner = torch.tensor([0] * 3 + [1] * 4)
    first, second = batch.aux["edges"]
    assert torch.equal(owner[first], owner[second])
    assert first.tolist() == [0, 1, 3, 4, 5]
    points = batch.coords[0]
    assert torch.equal(points[second] - points[first], torch.full((5, 2), 2.0))
    assert batch.aux["inflow"].tolist() == [[3.0], [4.0]]
    assert torch.equal(batch.aux["normals"], batch.coords)
    assert batch.surface.tolist() == [[True, False, False, True, False, False, False]]


@pytest.mark.parametrize("data", ["shared", "packed"])
def test_a_subset_gives_the_batches_of_the_whole(data, request):
    whole = request.getfixturevalue(data)
    order = torch.tensor([2, 0])
    one, other = whole.subset(order).everything(), whole.batch(order)
    for name in KINDS:
        assert torch.equal(one.aux[name], other.aux[name])
    for part in ("coords", "targets", "segments", "surface"):
        one_part, other_part = getattr(one, part), getattr(other, part)
        assert (one_part is None) == (other_part is None)
        assert one_part is None or torch.equal(one_part, other_part)


def test_edges_that_differ_between_samples_of_one_size():
    edges, offsets = torch.tensor([[0, 1, 0], [1, 0, 2]]), torch.tensor([0, 2, 3])
    spec = SPEC.model_copy(update={"aux": {"edges": "edge"}})
    data = FieldData(
        spec, numbered(3, 2), None, numbered(2, 3, 1), aux={"edges": edges}, edge_offsets={"edges": offsets}
    )
    assert data.ragged
    assert data.batch(torch.tensor([1, 0])).aux["edges"].tolist() == [[0, 3, 4], [2, 4, 3]]
    assert data.subset(torch.tensor([1])).batch(slice(None)).aux["edges"].tolist() == [[0], [2]]


def test_some_points_keep_their_own_auxiliary_values(packed):
    bare = {name: kind for name, kind in KINDS.items() if kind != "edge"}
    data = FieldData(
        SPEC.model_copy(update={"aux": bare}),
        packed.coords,
        None,
        packed.targets,
        packed.offsets,
        aux={name: packed.aux[name] for name in bare},
    )
    kept = [torch.tensor([1, 3]), torch.tensor([0])]
    batch = data.batch(torch.tensor([1, 0]), kept)
    assert torch.equal(batch.aux["normals"], batch.coords)
    assert batch.aux["inflow"].tolist() == [[4.0], [2.0]]
    assert set(packed.batch(torch.tensor([1, 0]), kept).aux) == {"normals", "inflow"}  # edges are left out


def test_repeated_samples_keep_their_edges(shared):
    """A rollout takes every sample once for each step."""
    batch = shared.batch(torch.tensor([1, 4])).repeat(3)
    assert batch.targets[:, 0, 0].tolist() == [4.0, 4.0, 4.0, 16.0, 16.0, 16.0]
    assert batch.aux["inflow"][:, 0].tolist() == [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
    owner = torch.arange(6).repeat_interleave(4)
    first, second = batch.aux["edges"]
    assert torch.equal(owner[first], owner[second])
    counted = torch.bincount(owner[first], minlength=6)
    assert counted.tolist() == [3] * 6
    assert set((second - first).tolist()) == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normals": numbered(3, 2)}, r"aux 'normals' is of points, but has shape \(3, 2\)"),
        ({"inflow": numbered(4, 1)}, r"aux 'inflow' is of samples, but has shape \(4, 1\)"),
        ({"edges": LINE.float()}, "aux 'edges' is of edges.*type torch.float32"),
        ({"edges": LINE.T.contiguous()}, r"aux 'edges' is of edges, but has shape \(3, 2\)"),
        ({"areas": numbered(4, 1)}, "spec.aux declares .* the data hold"),
    ],
)
def test_auxiliary_fields_that_do_not_fit_are_refused(shared, change, message):
    with pytest.raises(UserError, match=message):
        FieldData(SPEC, shared.coords, None, shared.targets, aux={**shared.aux, **change})


def test_a_batch_moves_with_its_auxiliary_fields(shared):
    moved = shared.batch(slice(2)).to(torch.device("meta"))
    assert {part.device.type for part in (*moved.aux.values(), moved.coords, moved.targets)} == {"meta"}
