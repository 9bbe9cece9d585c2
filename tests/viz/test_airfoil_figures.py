import numpy as np

from linearno.viz import (
    Case,
    WallPressure,
    case_figure,
    polar_figure,
    slice_weights_figure,
    wall_pressure_figure,
)
from linearno.viz.mesh import cell_reach, cells_within, nearest_points, triangulate_cells


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_the_pressure_runs_once_around_the_airfoil_with_low_pressure_above():
    x = np.array([0.5, 0.0, 1.0, 0.1, 0.9])
    upper = np.array([True, True, False, False, True])
    truth = np.arange(5.0)
    figure = wall_pressure_figure([WallPressure("a", x, upper, truth, truth + 100)])
    (axes,) = figure.axes
    assert lines(axes)["truth"].tolist() == [[0.9, 4], [0.5, 0], [0, 1], [0.1, 3], [1, 2]]
    assert lines(axes)["prediction"][:, 1].min() == 100
    bottom, top = axes.get_ylim()
    assert bottom > top  # upside down
    assert bottom < 6  # bad predictions do not change the scale


def test_predictions_beyond_the_axis_of_a_polar_are_drawn_at_its_border():
    angle = np.array([-2.0, 0.0, 4.0])
    lift, drag = np.array([0.1, 0.2, 50.0]), np.array([0.01, 0.02, 0.03])
    figure = polar_figure(angle, lift, np.array([0.0, 0.2, 0.6]), drag, drag)
    above, below = figure.axes
    assert lines(above)["prediction"][2].tolist() == [4.0, above.get_ylim()[1]]
    assert lines(above)["truth"][:, 1].tolist() == [0.0, 0.2, 0.6]
    assert lines(below)["prediction"].tolist() == lines(below)["truth"].tolist()


def square_with_a_hole():
    """Eight quadrilaterals of a 3 × 3 grid of cells without the middle one."""
    x, y = np.meshgrid(np.arange(4.0), np.arange(4.0))
    number = np.arange(16).reshape(4, 4)
    corners = [number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]]
    cells = np.stack([part.ravel() for part in corners], axis=1)
    return np.stack([x.ravel(), y.ravel()], axis=1), np.delete(cells, 4, axis=0)


def test_a_field_is_drawn_on_the_cells_of_its_mesh():
    coords, cells = square_with_a_hole()
    mesh = triangulate_cells(coords, cells)
    areas = mesh.calculate_plane_coefficients(np.ones(16))
    assert len(mesh.triangles) == 16
    assert len(areas) == 16
    assert mesh.get_trifinder()(1.5, 1.5) == -1  # the hole
    case = Case(coords, coords[:, 0], coords[:, 1], cells=cells, view=((0.0, 1.0), (0.0, 1.0)))
    figure = case_figure(case)
    drawn = [part for part in figure.axes[1].collections if part.get_array() is not None]
    assert len(drawn) == 1
    assert figure.axes[1].get_xlim() == (0.0, 1.0)
    assert cells_within(coords, cells, case.view).tolist() == cells[[0, 1, 3]].tolist()
    assert len(cells_within(coords, cells, None)) == 8


def test_pixels_belong_to_points_as_far_as_their_cells_reach():
    """The nearest points of a boundary layer are all in one column of cells."""
    x, y = np.meshgrid([0.0, 10.0], 0.01 * np.arange(8))
    coords = np.stack([x.ravel(), y.ravel()], axis=1)
    first = np.arange(0, 14, 2)
    cells = np.stack([first, first + 1, first + 3, first + 2], axis=1)
    reach = cell_reach(coords, cells)
    np.testing.assert_allclose(reach, 10)
    assert (nearest_points(coords, 50, reach) >= 0).all()
    assert (nearest_points(coords, 50) < 0).any()


def test_slice_maps_are_cropped_to_the_plot():
    coords, cells = square_with_a_hole()
    figure = slice_weights_figure(
        coords, np.arange(16.0).reshape(1, 1, 16), view=((0.0, 1.5), (0.0, 1.5)), cells=cells
    )
    (image,) = figure.axes[0].get_images()
    assert image.get_extent() == [0.0, 1.0, 0.0, 1.0]
    assert set(np.unique(image.get_array().compressed())) == {0, 1, 4, 5}
