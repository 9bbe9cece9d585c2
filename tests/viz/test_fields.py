import numpy as np
import pytest

from linearno.viz import Case, case_figure, dominant_slices_figure, field_figure, png_bytes, strip_figure
from linearno.viz.fields import FIELD_COLORMAP, SIGNED_COLORMAP, color_limits, color_scale
from linearno.viz.mesh import corners, nearest_points, triangulate


def grid_points(rows: int, columns: int) -> np.ndarray:
    """Rows run along x: the first coordinate is the slow one."""
    axes = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 2, columns), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 2)


def annulus(count: int = 900) -> np.ndarray:
    """Points on a sunflower spiral outside a hole of radius 0.4."""
    k = np.arange(count)
    radius, angle = np.sqrt(0.16 + 0.84 * (k + 0.5) / count), k * np.pi * (3 - np.sqrt(5))
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title() == title)


@pytest.mark.parametrize("grid", [(5, 7), None])
def test_truth_and_prediction_share_one_scale_and_the_error_has_its_own(grid):
    coords = grid_points(5, 7)
    truth = coords.sum(axis=1)
    figure = case_figure(Case(coords, truth, 2 - truth, grid=grid))
    scales = {name: panel(figure, name).collections[0].get_clim() for name in ("truth", "prediction")}
    assert scales["truth"] == scales["prediction"] == (-1.0, 3.0)
    assert panel(figure, "absolute error").collections[0].get_clim() == (0.0, 4.0)


def test_every_panel_has_a_colour_bar_with_name_and_unit():
    coords = grid_points(5, 7)
    values = coords[:, 0]
    labels = {"input_label": "coeff (m²)", "output_label": "sol (Pa)"}
    figure = case_figure(Case(coords, values, values, values, grid=(5, 7), **labels))
    bars = [bar for axes in figure.axes for bar in axes.child_axes]
    assert [bar.get_xlabel() for bar in bars] == ["coeff (m²)", "sol (Pa)", "sol (Pa)", "sol (Pa)"]


def test_observed_points_are_drawn_where_they_are_in_the_colours_of_the_truth():
    coords = grid_points(5, 7)
    truth, observed = coords.sum(axis=1), np.array([3, 17, 30, 4])
    figure = case_figure(Case(coords, truth, 2 - truth, grid=(5, 7), observed=observed, over_time=True))
    dots = panel(figure, "4 of 35 observed").collections[0]
    np.testing.assert_allclose(dots.get_offsets(), coords[observed])
    np.testing.assert_allclose(dots.get_array(), truth[observed])
    assert dots.get_clim() == panel(figure, "truth").collections[0].get_clim()
    assert panel(figure, "4 of 35 observed").get_xlim() == panel(figure, "truth").get_xlim()
    assert panel(figure, "truth").get_ylim()[0] == pytest.approx(-1 / 6)  # half a cell beyond the first point


def test_the_more_points_are_observed_the_smaller_they_are():
    coords = grid_points(40, 40)
    few, many = (
        panel(
            case_figure(Case(coords, coords[:, 0], coords[:, 0], grid=(40, 40), observed=np.arange(count))),
            f"{count:,} of 1,600 observed",
        ).collections[0]
        for count in (20, 1200)
    )
    assert many.get_sizes()[0] < few.get_sizes()[0] / 2


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_observations_on_any_number_of_coordinates_are_drawn(dimensions):
    rng = np.random.default_rng(0)
    coords, truth = rng.uniform(size=(40, dimensions)), rng.standard_normal(40)
    assert png_bytes(case_figure(Case(coords, truth, truth, observed=np.arange(9))), dpi=40)


def test_space_and_time_need_no_common_scale():
    coords = grid_points(5, 7) * np.array([1.0, 100.0])
    figure = case_figure(Case(coords, coords[:, 0], coords[:, 0], grid=(5, 7), over_time=True))
    assert panel(figure, "truth").get_aspect() == "auto"


@pytest.mark.parametrize("swapped", [False, True])
def test_a_grid_is_drawn_where_its_coordinates_say(swapped):
    """Whichever axis the rows run along, a cell that holds the value x lies at x."""
    coords = grid_points(5, 7)[:, ::-1] if swapped else grid_points(5, 7)
    figure = field_figure(coords, coords[:, 0].copy(), label="x", grid=(5, 7))
    mesh = figure.axes[0].collections[0]
    corner = mesh.get_coordinates()
    centre = (corner[1:, 1:] + corner[:-1, 1:] + corner[1:, :-1] + corner[:-1, :-1]) / 4
    np.testing.assert_allclose(centre[..., 0], mesh.get_array(), atol=1e-12)
    np.testing.assert_allclose(centre[..., 1].ravel(), coords[:, 1], atol=1e-12)


def test_a_curved_pipe_is_drawn_to_scale_and_nothing_is_drawn_outside_it():
    along, across = np.meshgrid(np.linspace(0, 10, 21), np.linspace(-0.5, 0.5, 9), indexing="ij")
    coords = np.stack([along, across + 0.4 * np.sin(along)], axis=-1).reshape(-1, 2)
    figure = case_figure(Case(coords, coords[:, 0], coords[:, 0], grid=(21, 9)))
    axes = panel(figure, "truth")
    assert axes.get_aspect() == 1
    mesh = axes.collections[0]
    np.testing.assert_allclose(mesh.get_coordinates().reshape(-1, 2), coords)  # each value at its own point
    np.testing.assert_allclose(np.ravel(mesh.get_array()), coords[:, 0])
    hole = np.where(coords[:, 0] > 5, coords[:, 0], np.nan)  # shades cannot span what is missing: cells again
    figure = field_figure(coords, hole, label="x", grid=(21, 9))
    cells = figure.axes[0].collections[0].get_coordinates()
    assert cells.shape == (22, 10, 2)
    assert (cells[..., 0].min(), cells[..., 0].max()) == (0, 10)  # and these end at the outermost points


def test_a_view_shows_its_part_of_the_domain_to_scale():
    """An airfoil in a domain 80 times as large would be a dot."""
    coords, view = 40 * grid_points(21, 11), ((-0.5, 1.5), (-0.5, 0.5))
    figure = case_figure(Case(coords, coords[:, 0], coords[:, 0], grid=(21, 11), view=view))
    for name in ("input: 231 points", "truth", "prediction", "absolute error"):
        axes = panel(figure, name)
        assert (axes.get_xlim(), axes.get_ylim(), axes.get_aspect()) == (*view, 1)
    box = panel(figure, "truth").get_position()
    width, height = box.width * figure.get_figwidth(), box.height * figure.get_figheight()
    assert height / width == pytest.approx(0.5)
    one = field_figure(coords, coords[:, 0], label="x", grid=(21, 11), view=view).axes[0]
    assert (one.get_xlim(), one.get_ylim()) == view
    maps = dominant_slices_figure(coords, np.zeros((1, 2, 231), dtype=int), grid=(21, 11), view=view)
    assert [axes.get_xlim() for axes in maps.axes] == [view[0]] * 2


def test_where_points_move_a_prediction_is_drawn_at_its_own_and_all_else_at_the_true_ones():
    coords = grid_points(5, 7)
    case = Case(coords, coords[:, 0], coords[:, 1], coords[:, 0], grid=(5, 7), predicted_coords=coords + 0.3)
    for name, shift in (("input", 0.0), ("truth", 0.0), ("prediction", 0.3), ("absolute error", 0.0)):
        drawn = panel(case_figure(case), name).collections[0].get_coordinates().reshape(-1, 2)
        np.testing.assert_allclose(drawn, coords + shift)


def test_corners_of_a_uniform_grid_are_its_cell_edges():
    x = np.broadcast_to(np.arange(4.0)[:, None], (4, 3))
    np.testing.assert_allclose(corners(x), np.broadcast_to(np.arange(-0.5, 4)[:, None], (5, 4)))


def test_triangles_fill_the_domain_and_not_its_hole():
    points = annulus()
    a, b, c = np.moveaxis(points[triangulate(points).get_masked_triangles()], 1, 0)
    (ux, uy), (vx, vy) = (b - a).T, (c - a).T
    assert np.abs(ux * vy - uy * vx).sum() / 2 == pytest.approx(np.pi * 0.84, rel=0.05)
    assert np.linalg.norm((a + b + c) / 3, axis=1).min() > 0.3


def test_pixels_fill_the_domain_and_not_its_hole():
    index, spacing = nearest_points(annulus(), 100), 0.07
    assert index[50, 50] == -1
    filled, grown = (index >= 0).mean(), (1 + spacing) ** 2 - (0.4 - spacing) ** 2
    assert np.pi / 4 * 0.84 < filled < np.pi / 4 * grown
    assert np.argmax(annulus()[:, 0]) in index[:, -1]
    assert np.argmax(annulus()[:, 1]) in index[-1]


def test_points_on_a_line_make_no_mesh_and_are_drawn_as_dots():
    coords = np.column_stack([np.linspace(0, 1, 9)] * 2)
    assert triangulate(coords) is None
    figure = field_figure(coords, coords[:, 0], label="x")
    assert len(figure.axes[0].collections[0].get_offsets()) == 9


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("broken", [False, True])
def test_any_number_of_coordinates_is_drawn(dimensions, broken):
    rng = np.random.default_rng(0)
    coords, truth = rng.uniform(size=(40, dimensions)), rng.standard_normal(40)
    prediction = np.where(np.arange(40) == 3, np.nan, truth) if broken else truth
    assert png_bytes(case_figure(Case(coords, truth, prediction)), dpi=40)


def test_a_line_shares_its_scale_too():
    x = np.linspace(0, 1, 11)
    figure = case_figure(Case(x[:, None], x, x + 0.5))
    assert panel(figure, "truth").get_ylim() == panel(figure, "prediction").get_ylim()


def test_limits_ignore_what_is_not_finite_and_are_never_equal():
    assert color_limits(np.array([1.0, np.nan, 3.0]), np.array([-2.0, np.inf, 0.0])) == (-2.0, 3.0)
    low, high = color_limits(np.full(3, 5.0))
    assert low < 5 < high
    assert color_limits(np.full(3, np.nan)) == (0.0, 1.0)


def test_names_are_shown_letter_by_letter():
    coords = grid_points(3, 3)
    png_bytes(field_figure(coords, coords[:, 0], label=r"$\frac{", title="a $b$ _c"), dpi=40)


def test_a_strip_is_a_row_or_a_column_where_panels_are_flat():
    square, flat = grid_points(5, 7), grid_points(5, 7) * [1, 0.1]
    for coords, same in ((square, "y0"), (flat, "x0")):
        figure = strip_figure(Case(coords, coords[:, 0], coords[:, 1], grid=(5, 7)))
        names = ("truth", "prediction", "absolute error")
        assert len({round(getattr(panel(figure, name).get_position(), same), 6) for name in names}) == 1


def test_a_strip_keeps_the_scale_of_the_truth_however_far_off_the_prediction_is():
    coords = grid_points(5, 7)
    figure = strip_figure(Case(coords, coords[:, 0], 100 * coords[:, 1], grid=(5, 7)))
    assert panel(figure, "prediction").collections[0].get_clim() == (0.0, 1.0)


def test_a_strip_shows_the_requested_part_of_the_plane():
    coords = grid_points(5, 7)
    figure = strip_figure(
        Case(coords, coords[:, 0], coords[:, 1], grid=(5, 7), view=((0.0, 0.5), (1.0, 1.4)))
    )
    assert panel(figure, "truth").get_xlim() == (0, 0.5)
    assert panel(figure, "absolute error").get_ylim() == (1, 1.4)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_a_strip_of_any_number_of_coordinates_is_drawn(dimensions):
    coords = np.random.default_rng(0).uniform(size=(40, dimensions))
    assert png_bytes(strip_figure(Case(coords, coords[:, 0], coords[:, 0])), dpi=40)


def test_signed_fields_have_a_diverging_colour_map_centred_at_zero():
    signed, nearly_positive = np.array([-1.0, 0.5, 3.0]), np.array([-0.1, 0.5, 3.0])
    assert color_scale(2, signed) == ((-3.0, 3.0), SIGNED_COLORMAP)
    assert color_scale(2, nearly_positive) == ((-0.1, 3.0), FIELD_COLORMAP)
    assert color_scale(2, -nearly_positive) == ((-3.0, 0.1), FIELD_COLORMAP)
    assert color_scale(2, nearly_positive, -2 * nearly_positive) == ((-6.0, 3.0), FIELD_COLORMAP)
    assert color_scale(2, signed, 2 * signed) == ((-6.0, 6.0), SIGNED_COLORMAP)
    assert color_scale(1, signed) == ((-1.0, 3.0), FIELD_COLORMAP)
