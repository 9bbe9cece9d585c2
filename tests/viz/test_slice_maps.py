import numpy as np
import pytest

from linearno.viz import dominant_slices_figure, png_bytes, slice_weights_figure
from linearno.viz.slices import CATEGORIES


def points(rows: int = 6, columns: int = 5) -> np.ndarray:
    axes = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 2)


def test_rows_are_layers_and_columns_are_heads():
    figure = dominant_slices_figure(points(), np.zeros((2, 3, 30), dtype=np.uint16), grid=(6, 5))
    assert [axes.get_title() for axes in figure.axes] == ["head 1", "head 2", "head 3", "", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["layer 1", "", "", "layer 2", "", ""]


def test_rows_too_low_for_a_word_are_numbered():
    flat = points() * [10, 2]
    figure = dominant_slices_figure(flat, np.zeros((2, 3, 30), dtype=np.uint16), grid=(6, 5))
    assert [axes.get_ylabel() for axes in figure.axes] == ["1", "", "", "2", "", ""]


def test_the_slice_with_most_points_has_the_first_colour():
    dominant = np.repeat([40, 7, 40, 2], [10, 8, 7, 5])[None, None].astype(np.uint16)
    drawn = dominant_slices_figure(points(), dominant, grid=(6, 5)).axes[0].collections[0].get_array()
    np.testing.assert_array_equal(drawn.ravel(), np.repeat([0, 1, 0, 2], [10, 8, 7, 5]))


def test_slices_beyond_the_palette_share_grey():
    dominant = np.arange(30, dtype=np.uint16)[None, None]
    mesh = dominant_slices_figure(points(), dominant, grid=(6, 5)).axes[0].collections[0]
    assert mesh.get_array().max() == CATEGORIES.N - 1
    assert (mesh.get_array() == CATEGORIES.N - 1).sum() == 30 - (CATEGORIES.N - 1)


def test_weights_start_at_zero_in_every_panel():
    weights = np.stack([np.full(30, 0.25), np.linspace(0.5, 1, 30)])[None].astype(np.float32)
    figure = slice_weights_figure(points(), weights, grid=(6, 5))
    assert [axes.collections[0].get_clim() for axes in figure.axes] == [(0, 0.25), (0, 1)]


def test_cells_around_a_body_end_at_its_wall_and_those_of_a_square_half_a_cell_beyond():
    radius, angle = np.meshgrid(np.linspace(1, 2, 6), np.linspace(0, np.pi, 61), indexing="ij")
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1, 2)
    drawn = mesh_of(ring, (6, 61))
    reach = np.linalg.norm(drawn, axis=-1)
    assert reach.min() == pytest.approx(1, rel=1e-3)  # a chord of the wall lies a little within it
    assert reach.max() == pytest.approx(2)
    assert drawn[..., 1].min() == pytest.approx(0, abs=1e-12)
    square = mesh_of(points(), (6, 5))
    np.testing.assert_allclose(square.min(axis=(0, 1)), [-1 / 10, -1 / 8])


def mesh_of(coords: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The corners of the cells that are drawn."""
    figure = dominant_slices_figure(coords, np.zeros((1, 1, len(coords)), dtype=np.uint16), grid=grid)
    return figure.axes[0].collections[0].get_coordinates()


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_scattered_points_keep_their_categories(dimensions):
    """A pixel shows the slice of its nearest point, never a mixture."""
    rng = np.random.default_rng(0)
    coords = rng.uniform(size=(80, dimensions))
    dominant = rng.choice([3, 9], size=(1, 1, 80)).astype(np.uint16)
    figure = dominant_slices_figure(coords, dominant)
    assert set(np.unique(figure.axes[0].images[0].get_array().compressed())) == {0, 1}
    png_bytes(figure, dpi=40)
