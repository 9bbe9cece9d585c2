from base64 import b64decode

import matplotlib as mpl
import numpy as np
from matplotlib import _pylab_helpers

from linearno.viz import TrainingCurve, data_uri, png_bytes, training_figure


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
