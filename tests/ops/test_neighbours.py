"""The search for neighbours agrees with sorting all distances."""

import numpy as np
import pytest
import torch

from linearno.ops import neighbours
from linearno.ops.neighbours import Neighbours, find_neighbours, search_distances


def points_of(samples=3, count=41, axes=2, seed=0):
    return torch.rand(
        samples, count, axes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def brute_force(points, queries, count, radius=None, mask=None):
    """Reference: sort the distances of each query point to all points."""
    found = []
    for sample, (own, asked) in enumerate(zip(points.numpy(), queries.numpy(), strict=True)):
        for query in asked:
            distance = np.sqrt(((own - query) ** 2).sum(axis=-1))
            near = np.ones(len(own), bool) if radius is None else distance <= radius
            near &= True if mask is None else mask[sample].numpy()
            order = [point for point in np.argsort(distance) if near[point]][:count]
            found.append(order + [-1] * (count - len(order)))
    table = torch.tensor(found).view(len(points), queries.shape[1], count)
    return Neighbours(table.clamp(min=0), table >= 0)


def check_equal(found, expected):
    assert torch.equal(found.exists, expected.exists)
    assert torch.equal(found.rows, expected.rows)


CASES = {
    "nearest": {"count": 5},
    "more neighbours than points": {"count": 50},
    "one neighbour": {"count": 1},
    "radius": {"count": 41, "radius": 0.2},
    "radius, capped": {"count": 4, "radius": 0.3},
}


@pytest.mark.parametrize("search", [find_neighbours, search_distances])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_brute_force(case, axes, search):
    points, queries = points_of(axes=axes), points_of(count=17, axes=axes, seed=1)
    check_equal(search(points, queries, **CASES[case]), brute_force(points, queries, **CASES[case]))
    check_equal(search(points, points, **CASES[case]), brute_force(points, points, **CASES[case]))


@pytest.mark.parametrize("search", [find_neighbours, search_distances])
def test_padded_points_are_no_neighbours(search):
    points = points_of()
    mask = torch.arange(41) < torch.tensor([[41], [3], [20]])
    found = search(points, points, count=6, mask=mask)
    check_equal(found, brute_force(points, points, 6, mask=mask))
    assert found.exists[1].sum(dim=-1).eq(3).all()


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_blocks_of_any_size_give_the_same(rows, monkeypatch):
    points = points_of()
    monkeypatch.setattr(neighbours, "MAX_DISTANCES", rows * 3 * 41)
    check_equal(search_distances(points, points, 5), brute_force(points, points, 5))


def test_a_point_is_its_own_first_neighbour_and_a_radius_includes_its_bound():
    line = torch.arange(4.0).view(1, 4, 1)
    found = find_neighbours(line, line, count=4, radius=1.0)
    assert found.rows[0, :, 0].tolist() == [0, 1, 2, 3]
    assert found.exists.sum(dim=-1).tolist() == [[2, 3, 3, 2]]
    check_equal(search_distances(line, line, 1, 1.0), find_neighbours(line, line, count=1, radius=1.0))


@pytest.fixture
def searches(monkeypatch):
    """Start with an empty cache; record the sizes of the trees built."""
    monkeypatch.setattr(neighbours, "_CACHE", neighbours._TableCache(2**20))
    built, tree = [], neighbours.cKDTree

    def counted(points):
        built.append(len(points))
        return tree(points)

    monkeypatch.setattr(neighbours, "cKDTree", counted)
    return built


def test_the_same_points_are_searched_once(searches):
    points = points_of()
    first = find_neighbours(points, points, count=5)
    some = points[[2, 0]]
    again = find_neighbours(some, some, count=5)
    assert searches == [41] * 3
    check_equal(again, Neighbours(*(part[[2, 0]] for part in first)))


def test_other_points_and_other_settings_are_searched_again(searches):
    points = points_of(samples=1)
    mask = torch.arange(41)[None] < 30
    for settings in ({"count": 5}, {"count": 6}, {"count": 5, "radius": 0.1}, {"count": 5, "mask": mask}):
        for moved in (points, points + 0.1 * points_of(samples=1, seed=1)):
            found = find_neighbours(moved, points, **settings)
            check_equal(found, brute_force(moved, points, **settings))
    assert len(searches) == 8
    find_neighbours(points, points, count=5, cache=False)
    assert len(searches) == 9


def test_a_mesh_that_all_samples_share_is_searched_once(searches):
    points = points_of(samples=1).expand(4, -1, -1)
    found = find_neighbours(points, points, count=5, cache=False)
    assert searches == [41]
    check_equal(found, brute_force(points, points, 5))


def test_the_cache_forgets_the_oldest_tables_beyond_its_limit(searches, monkeypatch):
    table = 41 * 5 * 4  # bytes
    monkeypatch.setattr(neighbours, "_CACHE", neighbours._TableCache(2 * table))
    points = points_of()
    for sample in (0, 1, 0, 2, 0, 1):
        find_neighbours(points[[sample]], points[[sample]], count=5)
    assert searches == [41] * 4  # sample 1 was forgotten when sample 2 came


def test_positions_of_half_precision_and_no_gradient():
    points = points_of(count=9).bfloat16().requires_grad_()
    found = find_neighbours(points, points, count=3)
    check_equal(found, brute_force(points.detach().double(), points.detach().double(), 3))
    assert not found.rows.requires_grad


def test_exports_for_any_number_of_points():
    class Search(torch.nn.Module):
        def forward(self, points):
            return tuple(find_neighbours(points, points, count=4, radius=0.5))

    size = torch.export.Dim("points", min=1)
    program = torch.export.export(Search(), (points_of(),), dynamic_shapes=({1: size},), strict=False)
    for count in (1, 3, 100):
        points = points_of(count=count)
        check_equal(Neighbours(*program.module()(points)), brute_force(points, points, 4, 0.5))
