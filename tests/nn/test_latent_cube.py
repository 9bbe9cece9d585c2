"""The latent grid of GINO: its box, and the points and grid points within a radius."""

import pytest
import torch

from linearno.nn.latent_cube import LatentCube, most_in_ball

SHAPES = [(9,), (8, 9), (12, 12), (5, 6, 7), (9, 9, 9)]


def within(radius, points, queries):
    return ((queries[:, :, None] - points[:, None]).norm(dim=-1) <= radius).sum(dim=-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [0.4, 1.5, 2.3])
def test_every_point_sees_all_grid_points_within_the_radius(shape, steps):
    radius = steps / (min(shape) - 1)
    cube = LatentCube(shape, None, None, radius, 32).double()
    points = torch.rand(1, 3000, len(shape), dtype=torch.float64)
    points[0, : len(cube.points)] = cube.points
    expected = within(radius, cube.points[None], points)
    assert torch.equal(cube.graph_out(points).exists.sum(dim=-1), expected)
    assert expected.max() <= cube.outgoing.neighbours <= 1.2 * expected.max() + 1


def test_the_default_radius_has_nine_grid_points_of_the_plane_and_twenty_of_space():
    found = [most_in_ball(1.5 / 63, (64,) * axes) for axes in (1, 2, 3)]
    assert found == [4, 9, 20]


def test_a_grid_point_sees_the_nearest_points_within_the_radius():
    cube = LatentCube((5, 6), None, 0.3, None, 4).double()
    points = torch.rand(2, 50, 2, dtype=torch.float64)
    graph = cube.graph_in(points, None)
    distances = (cube.points_of(points)[:, :, None] - points[:, None]).norm(dim=-1)
    assert torch.equal(graph.exists.sum(dim=-1), (distances <= 0.3).sum(dim=-1).clamp(max=4))
    nearest = distances.sort(dim=-1).values[..., :4].masked_fill(~graph.exists, 0)
    found = distances.flatten(0, 1).gather(1, graph.rows.flatten(0, 1) % 50).view(2, 30, 4)
    torch.testing.assert_close(found.masked_fill(~graph.exists, 0), nearest)


def test_the_box_of_each_mesh_is_mapped_to_the_unit_cube():
    positions = torch.rand(2, 40, 2) * torch.tensor([[[6.0, 3.0]], [[0.1, 9.0]]]) - 2
    unit = (box := LatentCube((4, 4), None, None, None, 4).box_of(positions)).to_unit(positions)
    torch.testing.assert_close(unit.amin(dim=1), torch.zeros(2, 2))
    torch.testing.assert_close(unit.amax(dim=1), torch.ones(2, 2))
    assert box.low.shape == (2, 1, 2)
    fixed = LatentCube((4, 4), ((-2.0, 4.0), (-1.5, 1.5)), None, None, 4).box_of(positions)
    corners = torch.tensor([[[-2.0, -1.5], [4.0, 1.5], [1.0, 0.0]]])
    torch.testing.assert_close(fixed.to_unit(corners), torch.tensor([[[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]]))


def test_a_flat_mesh_has_a_finite_position_on_the_cube():
    positions = torch.tensor([[[1.0, 3.0], [2.0, 3.0]]])
    unit = LatentCube((4, 4), None, None, None, 4).box_of(positions).to_unit(positions)
    torch.testing.assert_close(unit, torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]))
