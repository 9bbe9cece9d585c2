import numpy as np
import pytest

from linearno.reproduce.figures import convergence_figure


def test_the_fitted_line_has_the_slope_and_passes_through_the_points():
    sizes = [64, 256, 1024, 4096]
    errors = [3 * n**-0.4 for n in sizes]
    figure = convergence_figure(sizes, errors, slope=-0.4, spread=[(0.9 * e, 1.1 * e) for e in errors])
    fit, theory = figure.axes[0].lines[-2:]
    np.testing.assert_allclose(fit.get_ydata(), errors)
    slope = np.polyfit(np.log(sizes), np.log(theory.get_ydata()), 1)[0]
    assert slope == pytest.approx(-0.5)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
