from base64 import b64decode

import matplotlib as mpl
import numpy as np
from matplotlib import _pylab_helpers

from linearno.viz import TrainingCurve, data_uri, png_bytes, training_figure
from linearno.viz.encode import quantize_colours


def make_figure():
    epochs = np.arange(1, 4)
    return training_figure([TrainingCurve("a", 0, epochs, 1 / epochs, 1 / epochs)])


def test_a_figure_is_a_png_and_its_address_holds_the_same_bytes():
    png = png_bytes(make_figure())
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    head, body = data_uri(make_figure()).split(",")
    assert head == "data:image/png;base64"
    assert b64decode(body) == png


def test_nothing_stays_in_matplotlib():
    before = dict(mpl.rcParams)
    png_bytes(make_figure())
    assert _pylab_helpers.Gcf.get_num_fig_managers() == 0
    assert dict(mpl.rcParams) == before


def test_edges_of_dots_do_not_take_the_colours_of_a_map():
    """A map in 256 shades, and 4,000 rare shades along the edges of what is drawn on it."""
    ramp = np.linspace(0, 255, 256).round().astype(np.uint8)
    shades = np.stack([ramp, 255 - ramp, np.full_like(ramp, 128)], axis=-1)
    filled = np.repeat(np.repeat(shades[None], 60, axis=0), 2, axis=1)
    edges = np.random.default_rng(0).integers(0, 255, (8, 512, 3)).astype(np.uint8)
    index, palette = quantize_colours(np.concatenate([filled, edges])[None])
    drawn = np.array(palette).reshape(-1, 3)[index[0]]
    assert np.abs(drawn[:60].astype(int) - filled).mean() < 1
    assert np.abs(drawn[60:].astype(int) - edges).mean() < 40  # and none of them is drawn in quite another
